// SPDX-License-Identifier: Apache-2.0
#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>
#include <utility>

#include "framework/distributed/shard_spec.h"
#include "framework/profile/span.h"
#include "framework/runtime/error.h"
#include "framework/runtime/log.h"
#include "framework/tensor/fill.h"
#include "framework/tensor/tensor_impl.h"
#include "optim/shard_groups.h"

namespace moegrad::optim {
namespace {

void check_lr(std::string_view what, double lr) {
  check<ValueError>(std::isfinite(lr) && lr >= 0.0, what, " must be finite and >= 0, got ", lr);
}

// Checks that the values of `given` may be copied into `own`, which is kept between steps.
void check_loads_into(std::string_view subject, const std::string& name, const Tensor& given,
                      const Tensor& own) {
  check<UndefinedTensorError>(given.defined(), subject, ": '", name, "' must be a defined tensor");
  check<ShapeError>(given.shape() == own.shape(), subject, ": '", name, "' must be ", own.shape(),
                    ", got ", given.shape());
  check<DtypeError>(given.dtype() == own.dtype(), subject, ": '", name, "' must be ", own.dtype(),
                    ", got ", given.dtype());
  check_same_part(subject, name, given.shard_spec(), own.shard_spec());
}

bool is_all_zero(const Tensor& parameter) {
  return dispatch_floating(parameter.dtype(), [&]<class T>() {
    return std::ranges::all_of(parameter.data<T>(), [](T value) { return value == T(0); });
  });
}

}  // namespace

std::vector<ParamGroup> with_defaults(std::vector<ParamGroup> groups, double lr,
                                      double weight_decay) {
  for (auto& group : groups) {
    group.lr = group.lr.value_or(lr);
    group.weight_decay = group.weight_decay.value_or(weight_decay);
  }
  return groups;
}

Optimizer::Optimizer(std::vector<ParamGroup> groups, const RowBlocks& skip_missing_grad)
    : groups_(std::move(groups)), missing_(all_parameters(), skip_missing_grad) {
  std::set<const TensorImpl*> seen;
  for (const auto& group : groups_) {
    check<ValueError>(group.lr && group.weight_decay,
                      "optimizer: each group must have an lr and a weight_decay, got one without");
    check_lr("optimizer: lr", *group.lr);
    base_lrs_.push_back(*group.lr);
    check<ValueError>(*group.weight_decay >= 0.0, "optimizer: weight_decay must be >= 0, got ",
                      *group.weight_decay);
    for (const auto& [name, parameter] : group.parameters) {
      check<ValueError>(seen.insert(parameter.impl().get()).second, "optimizer: parameter '", name,
                        "' is given twice");
      dtypes_.push_back(parameter.dtype());
    }
  }
  check<ValueError>(!seen.empty(), "optimizer: at least one parameter is needed, got none");
}

NamedTensors Optimizer::all_parameters() const {
  NamedTensors all;
  for (const auto& group : groups_) {
    all.insert(all.end(), group.parameters.begin(), group.parameters.end());
  }
  return all;
}

// A step that would train nothing, nothing that a module still has, or other weights on every rank.
void Optimizer::check_trainable() const {
  const auto all = all_parameters();
  check_not_replaced("step", all);
  check_not_converted(all);
  const bool any = std::ranges::any_of(
      all, [](const NamedTensor& parameter) { return parameter.tensor.grad().defined(); });
  check(any, "step: at least one parameter must have a gradient, got none");
  check_all_spread("step", all);
}

// What the optimizer keeps of a parameter has the dtype that the parameter had then.
void Optimizer::check_not_converted(const NamedTensors& parameters) const {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& [name, parameter] = parameters[i];
    check<DtypeError>(parameter.dtype() == dtypes_[i], "step: '", name, "' must be ", dtypes_[i],
                      " as when the optimizer was made, got ", parameter.dtype(),
                      "; make the optimizer after the module has been converted");
  }
}

// Warns of layers that nobody has initialised: no gradient passes through several of them.
void Optimizer::warn_of_zeros() const {
  std::size_t matrices = 0;
  for (const auto& group : groups_) {
    for (const auto& [name, parameter] : group.parameters) {
      if (parameter.ndim() < 2 || parameter.numel() == 0) continue;
      if (!is_all_zero(parameter)) return;
      ++matrices;
    }
  }
  if (matrices < 2) return;
  log(LogLevel::kWarning,
      "step: all " + std::to_string(matrices) +
          " matrices hold zeros alone, so that next to nothing is trained; fill them before, as "
          "nn::init_weights(model, seed) does");
}

void Optimizer::step() {
  const SpanGuard phase(SpanKind::kPhase, Lane::kOptimizer, "optimizer");
  check_trainable();
  if (!std::exchange(has_stepped_, true)) warn_of_zeros();
  missing_.look();
  std::size_t index = 0;
  for (const auto& group : groups_) {
    for (const auto& [name, parameter] : group.parameters) {
      const auto own = index++;
      const Tensor grad = parameter.grad();
      if (!grad.defined()) continue;
      const auto blocks = missing_.num_blocks(name);
      for (std::int64_t block = 0; block < blocks; ++block) {
        if (!missing_.has_gradient(name, block)) continue;
        Update update{.group = group,
                      .parameter = row_block(parameter, parameter, blocks, block),
                      .grad = row_block(grad, parameter, blocks, block),
                      .state = state_of(own)};
        for (auto& state : update.state) state = row_block(state, state, blocks, block);
        apply(update);
      }
    }
  }
}

void Optimizer::zero_grad() {
  for (const auto& group : groups_) {
    for (const auto& [name, parameter] : group.parameters) parameter.set_grad(Tensor());
  }
}

Tensor Optimizer::zero_state(const Tensor& parameter) {
  Tensor state = zeros_like(parameter);
  state.set_shard_spec(parameter.shard_spec());
  return state;
}

Tensor Optimizer::one_per_block(const std::string& name, const Tensor& parameter) const {
  Tensor state = Tensor::zeros({missing_.num_blocks(name)}, Dtype::kInt64);
  if (const auto& spec = parameter.shard_spec()) {
    state.set_shard_spec(
        std::make_shared<const ShardSpec>(whole_on_ranks_of(*spec, state.shape())));
  }
  return state;
}

void Optimizer::load_state_dict(const NamedTensors& state) {
  auto own = state_dict();
  for (const auto& given : state) {
    check(std::ranges::find(own, given.name, &NamedTensor::name) != own.end(),
          "optimizer load_state_dict: unexpected key '", given.name, "'");
    check(std::ranges::count(state, given.name, &NamedTensor::name) == 1,
          "optimizer load_state_dict: key '", given.name, "' is given twice");
  }
  std::vector<const Tensor*> sources;
  for (const auto& [name, tensor] : own) {
    const auto found = std::ranges::find(state, name, &NamedTensor::name);
    check(found != state.end(), "optimizer load_state_dict: missing key '", name, "'");
    check_loads_into("optimizer load_state_dict", name, found->tensor, tensor);
    sources.push_back(&found->tensor);
  }
  for (std::size_t i = 0; i < own.size(); ++i) copy_(own[i].tensor, *sources[i]);
}

void Optimizer::set_lr(double lr) {
  check_lr("set_lr: lr", lr);
  for (auto& group : groups_) group.lr = lr;
}

void Optimizer::set_lr(std::size_t group, double lr) {
  check<ValueError>(group < groups_.size(), "set_lr: group must be in [0, ", groups_.size(),
                    "), got ", group);
  check_lr("set_lr: lr", lr);
  groups_[group].lr = lr;
}

void Optimizer::scale_lr(double factor) {
  check_lr("scale_lr: factor", factor);
  for (std::size_t i = 0; i < groups_.size(); ++i) groups_[i].lr = factor * base_lrs_[i];
}

void Optimizer::mark_used(const std::string& name, std::span<const std::int64_t> uses) {
  missing_.mark_used(name, uses);
}

}  // namespace moegrad::optim
