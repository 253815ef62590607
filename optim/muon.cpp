// SPDX-License-Identifier: Apache-2.0
#include "optim/muon.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "framework/distributed/shard_runs.h"
#include "framework/runtime/error.h"
#include "framework/runtime/parallel_for.h"
#include "framework/tensor/fill.h"
#include "optim/adam_moments.h"
#include "optim/grain.h"
#include "optim/matrix_copies.h"
#include "optim/newton_schulz.h"
#include "optim/optimizer_state.h"

namespace moegrad::optim {
namespace {

ParamGroup with_muon_defaults(ParamGroup group, const Muon::Config& config) {
  if (!config.adamw_groups.contains(group.name)) {
    return with_defaults("Muon", {std::move(group)},
                         {.lr = config.lr,
                          .weight_decay = config.weight_decay,
                          .eps = config.eps,
                          .momentum = config.momentum,
                          .nesterov = config.nesterov,
                          .adjust = config.adjust})
        .front();
  }
  return with_defaults("Muon's AdamW", {std::move(group)}, adam_settings(config.adamw)).front();
}

std::vector<ParamGroup> with_muon_defaults(std::vector<ParamGroup> groups,
                                           const Muon::Config& config) {
  for (auto& group : groups) group = with_muon_defaults(std::move(group), config);
  return groups;
}

/// Moves the momentum, and writes the direction d.
template <class T>
void move_momentum(std::span<T> m, std::span<const T> g, std::span<T> d, double momentum,
                   bool nesterov) {
  const auto mu = static_cast<T>(momentum), rest = static_cast<T>(1.0 - momentum);
  parallel_for(static_cast<std::int64_t>(m.size()), kGrain,
               [&](std::int64_t begin, std::int64_t end) {
                 T* const __restrict buffer = m.data();
                 T* const __restrict direction = d.data();
                 const T* const __restrict grad = g.data();
                 for (auto i = begin; i < end; ++i) {
                   buffer[i] = mu * buffer[i] + rest * grad[i];
                   direction[i] = nesterov ? mu * buffer[i] + rest * grad[i] : buffer[i];
                 }
               });
}

double factor_of(Muon::Adjust adjust, const StoredMatrix& matrix) {
  const auto out = static_cast<double>(matrix.rows), in = static_cast<double>(matrix.columns);
  return adjust == Muon::Adjust::kOriginal ? std::sqrt(std::max(1.0, out / in))
                                           : 0.2 * std::sqrt(std::max(out, in));
}

}  // namespace

Muon::Muon(NamedTensors parameters, const Config& config)
    : Muon({ParamGroup{.parameters = std::move(parameters)}}, config) {}

Muon::Muon(std::vector<ParamGroup> groups, const Config& config)
    : MatrixOptimizer("Muon", with_muon_defaults(std::move(groups), config), config.matrices,
                      config.skip_missing_grad, config.skip_nonfinite_grad),
      adamw_groups_(config.adamw_groups) {
  for (const auto& name : adamw_groups_) {
    check<ValueError>(
        std::ranges::find(this->groups(), name, &ParamGroup::name) != this->groups().end(),
        "Muon: adamw_groups must name groups, got '", name, "'");
  }
  for (const auto& group : this->groups()) {
    if (is_adamw(group)) continue;
    for (const auto& [name, tensor] : group.parameters) {
      check<ShapeError>(tensor.ndim() == 2, "Muon: '", name, "' must be a matrix, got ",
                        global_shape(tensor), "; put it into a group of adamw_groups");
    }
  }
  keep([this](const ParamGroup& group, const NamedTensor& parameter) {
    if (is_adamw(group)) return adam_state(group, parameter.tensor, one_per_block(parameter));
    return NamedTensors{{"momentum_buffer", zero_state(parameter.tensor)}};
  });
}

void Muon::apply(Update& update) {
  adam_step(update.group, /*decoupled=*/true, update.parameter, update.grad, update.state);
}

void Muon::apply_blocks(Update& whole, const Blocks& blocks) {
  const auto& group = whole.group;
  if (is_adamw(group)) return Optimizer::apply_blocks(whole, blocks);
  const auto& parameter = whole.parameter;
  Tensor direction = zeros_like(parameter);
  for (const auto block : blocks.with_gradient) {
    const auto of_block = [&](const Tensor& tensor) {
      return row_block(tensor, parameter, blocks.count, block);
    };
    Tensor buffer = of_block(whole.state[0]), to = of_block(direction);
    const Tensor grad = of_block(whole.grad);
    dispatch_floating(parameter.dtype(), [&]<class T>() {
      move_momentum<T>(buffer.mutable_data<T>(), grad.data<T>(), to.mutable_data<T>(),
                       *group.momentum, *group.nesterov);
    });
  }
  Tensor delta = gather(direction, parameter);  // becomes lr factor orthogonalize(d)
  const auto matrices = stacked(whole.name);
  dispatch_floating(parameter.dtype(), [&]<class T>() {
    const auto place = stored_matrix(matrices, delta.shape(), 0);
    Tensor scratch = Tensor::empty({place.rows, place.columns}, delta.dtype());
    const auto matrix = scratch.mutable_data<T>();
    const auto scale = static_cast<T>(*group.lr * factor_of(*group.adjust, place));
    for (const auto index : with_gradient(matrices, blocks)) {
      const auto stored = stored_matrix(matrices, delta.shape(), index);
      take_matrix(stored, delta.data<T>().data(), matrix.data());
      orthogonalize(matrix.data(), stored.rows, stored.columns, *group.eps);
      for (auto& value : matrix) value *= scale;
      put_matrix(stored, matrix.data(), delta.mutable_data<T>().data());
    }
  });
  decay_and_subtract(whole, blocks, delta);
}

}  // namespace moegrad::optim
