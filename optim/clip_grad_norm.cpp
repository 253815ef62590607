// SPDX-License-Identifier: Apache-2.0
#include "optim/clip_grad_norm.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "framework/distributed/collectives.h"
#include "framework/distributed/shard_runs.h"
#include "framework/runtime/error.h"
#include "framework/runtime/parallel_for.h"
#include "optim/grain.h"
#include "optim/pre_rounded_sum.h"
#include "optim/shard_groups.h"

namespace moegrad::optim {
namespace {

template <class T, std::size_t kCount>
void reduce(const ProcessGroups& groups, std::array<T, kCount>& values, ReduceOp op) {
  for (const auto& group : groups) {
    all_reduce(*group, std::span<T>(values), op, {.label = "clip_grad_norm"});
  }
}

/// Gradients that are summed over the same groups: those of the parameters that are sharded over
/// them.
struct Part {
  ProcessGroups groups;  // none when nothing is sharded
  TensorList grads;
};

Part& part_with(const ProcessGroups& groups, std::vector<Part>& parts) {
  const auto found = std::ranges::find(parts, groups, &Part::groups);
  return found != parts.end() ? *found : parts.emplace_back(Part{groups, {}});
}

// Whole gradients belong to the first part, on the first rank of its groups. Other replicas of
// these groups have a first rank, too, with the same gradients.
std::vector<Part> parts_of(const NamedTensors& parameters) {
  std::vector<Part> parts;
  for (const auto& [name, parameter] : parameters) {
    if (const auto groups = shard_groups(parameter); !groups.empty()) part_with(groups, parts);
  }
  if (parts.empty()) parts.emplace_back();
  const auto is_first = [](const auto& group) { return group->rank() == 0; };
  const bool has_whole = std::ranges::all_of(parts.front().groups, is_first);
  for (const auto& [name, parameter] : parameters) {
    const Tensor grad = parameter.grad();
    if (!grad.defined()) continue;
    const auto groups = shard_groups(parameter);
    if (groups.empty() && !has_whole) continue;
    auto& part = groups.empty() ? parts.front() : part_with(groups, parts);
    part.grads.push_back(grad);
  }
  return parts;
}

/// The extreme of all gradients of all ranks. Every rank is in the groups of each parameter, so
/// after the reductions over all groups it knows the result for every parameter.
Extreme global_extreme(const TensorList& grads, const std::vector<Part>& parts) {
  Extreme extreme;
  for (const auto& grad : grads) extreme = max(extreme, extreme_of(grad));
  std::array<double, 2> shared = {extreme.magnitude, extreme.nan};
  for (const auto& part : parts) reduce(part.groups, shared, ReduceOp::kMax);
  return {.magnitude = shared[0], .nan = shared[1]};
}

Bins global_bins(const PreRoundedSum& sum, const std::vector<Part>& parts) {
  Bins total{};
  const auto add = [](Bins& to, const Bins& bins) {
    for (std::size_t i = 0; i < bins.size(); ++i) to[i] += bins[i];
  };
  for (const auto& part : parts) {
    Bins bins{};
    for (const auto& grad : part.grads) add(bins, sum.bins_of(grad));
    reduce(part.groups, bins, ReduceOp::kSum);
    add(total, bins);
  }
  return total;
}

double norm_of(const TensorList& grads, const std::vector<Part>& parts, double norm_type) {
  const auto [magnitude, nan] = global_extreme(grads, parts);
  if (nan != 0.0) return std::numeric_limits<double>::quiet_NaN();
  if (magnitude == 0.0 || std::isinf(magnitude) || std::isinf(norm_type)) return magnitude;
  const PreRoundedSum sum(norm_type == 1.0 ? 1 : 2, magnitude);
  return sum.norm_of(global_bins(sum, parts));
}

std::int64_t global_elements(const NamedTensors& parameters) {
  std::int64_t elements = 0;
  for (const auto& [name, parameter] : parameters) {
    elements += global_shape(parameter).numel();
  }
  return elements;
}

void scale_in_place(Tensor& tensor, double factor) {
  dispatch_floating(tensor.dtype(), [&]<class T>() {
    const auto values = tensor.mutable_data<T>();
    const T rounded = static_cast<T>(factor);
    parallel_for(tensor.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (auto i = begin; i < end; ++i) values[static_cast<std::size_t>(i)] *= rounded;
    });
  });
}

}  // namespace

double clip_grad_norm(const NamedTensors& parameters, double max_norm, double norm_type) {
  check<ValueError>(max_norm >= 0.0, "clip_grad_norm: max_norm must be >= 0, got ", max_norm);
  check<ValueError>(
      norm_type == 1.0 || norm_type == 2.0 || norm_type == std::numeric_limits<double>::infinity(),
      "clip_grad_norm: norm_type must be 1, 2 or inf, got ", norm_type);
  const auto elements = global_elements(parameters);
  check<ValueError>(elements <= kMaxTerms, "clip_grad_norm: at most ", kMaxTerms, " elements, got ",
                    elements);
  check_not_replaced("clip_grad_norm", parameters);
  TensorList grads;
  for (const auto& [name, parameter] : parameters) {
    if (Tensor grad = parameter.grad(); grad.defined()) grads.push_back(std::move(grad));
  }
  const double norm = norm_of(grads, parts_of(parameters), norm_type);
  const double factor = max_norm / (norm + 1e-6);
  if (!(factor >= 1.0)) {  // also true for NaN
    for (auto& grad : grads) scale_in_place(grad, factor);
  }
  return norm;
}

}  // namespace moegrad::optim
