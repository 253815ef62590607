// SPDX-License-Identifier: Apache-2.0
#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "framework/distributed/collectives.h"
#include "framework/distributed/shard_spec.h"
#include "framework/runtime/arena.h"
#include "framework/runtime/error.h"
#include "framework/runtime/log.h"
#include "framework/runtime/span.h"
#include "optim/optimizer_state.h"
#include "optim/parameter_checks.h"
#include "optim/pre_rounded_sum.h"
#include "optim/shard_groups.h"

namespace moegrad::optim {
namespace {

void check_rate(std::string_view what, double rate) {
  check<ValueError>(std::isfinite(rate) && rate >= 0.0, what, " must be finite and >= 0, got ",
                    rate);
}

bool is_all_zero(const Tensor& parameter) {
  return dispatch_floating(parameter.dtype(), [&]<class T>() {
    return std::ranges::all_of(parameter.data<T>(), [](T value) { return value == T(0); });
  });
}

}  // namespace

Optimizer::Optimizer(std::vector<ParamGroup> groups, const RowBlocks& skip_missing_grad,
                     bool skip_nonfinite_grad)
    : groups_(std::move(groups)),
      missing_(all_parameters(), skip_missing_grad),
      skip_nonfinite_grad_(skip_nonfinite_grad) {
  const auto parameters = all_parameters();
  check<ValueError>(!parameters.empty(), "optimizer: at least one parameter is needed, got none");
  check_parameters("optimizer", parameters);
  for (const auto& [name, parameter] : parameters) dtypes_.push_back(parameter.dtype());
  for (const auto& group : groups_) {
    check<ValueError>(group.lr && group.weight_decay,
                      "optimizer: each group must have an lr and a weight_decay, got one without");
    check_rate("optimizer: lr", *group.lr);
    base_lrs_.push_back(*group.lr);
    check_rate("optimizer: weight_decay", *group.weight_decay);
  }
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
  for (const auto& [name, parameter] : all) {
    check(!has_mark(parameter, kHoldsAverage), "step: '", name,
          "' must hold its weights, got the averages that WeightAverage::swap() has put in their "
          "place; call swap() again first");
  }
  const bool any = std::ranges::any_of(
      all, [](const NamedTensor& parameter) { return parameter.tensor.grad().defined(); });
  check(any,
        "step: at least one parameter must have a gradient, got none; if optimizers take turns, "
        "step the one whose parameters backward has reached");
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

// Whether no gradient of any rank has a NaN or an infinity. Collective.
bool Optimizer::all_gradients_are_finite() const {
  const auto all = all_parameters();
  std::int64_t nonfinite = 0;
  for (const auto& [name, parameter] : all) {
    if (const Tensor grad = parameter.grad(); grad.defined() && nonfinite == 0) {
      const auto [magnitude, nan] = extreme_of(grad);
      nonfinite = nan != 0.0 || std::isinf(magnitude) ? 1 : 0;
    }
  }
  for (const auto& group : mesh_groups(all)) {
    nonfinite = all_reduce(*group, nonfinite, ReduceOp::kMax, {.label = "skip_nonfinite_grad"});
  }
  return nonfinite == 0;
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
          "nn::init_weights(model, seed, 0.02) does");
}

void Optimizer::step() {
  const SpanGuard phase(SpanKind::kPhase, Lane::kOptimizer, "optimizer");
  check_trainable();
  if (!std::exchange(has_stepped_, true)) warn_of_zeros();
  missing_.look();
  if (skip_nonfinite_grad_ && !all_gradients_are_finite()) {
    ++skipped_steps_;
    return;
  }
  make_states(states_);
  const MemoryTagGuard tag(MemoryTag::kOptimizer);
  std::size_t index = 0;
  for (const auto& group : groups_) {
    for (const auto& [name, parameter] : group.parameters) {
      const auto own = index++;
      const Tensor grad = parameter.grad();
      if (!grad.defined()) continue;
      Blocks blocks{.count = missing_.num_blocks(name)};
      for (std::int64_t block = 0; block < blocks.count; ++block) {
        if (missing_.has_gradient(name, block)) blocks.with_gradient.push_back(block);
      }
      Update whole{.group = group, .name = name, .parameter = parameter, .grad = grad, .state = {}};
      if (own < states_.size()) {
        for (const auto& [key, tensor] : states_[own].value()) whole.state.push_back(tensor);
      }
      apply_blocks(whole, blocks);
    }
  }
}

void Optimizer::apply_blocks(Update& whole, const Blocks& blocks) {
  for (const auto block : blocks.with_gradient) {
    Update update{.group = whole.group,
                  .name = whole.name,
                  .parameter = row_block(whole.parameter, whole.parameter, blocks.count, block),
                  .grad = row_block(whole.grad, whole.parameter, blocks.count, block),
                  .state = {}};
    for (const auto& state : whole.state) {
      update.state.push_back(row_block(state, state, blocks.count, block));
    }
    apply(update);
  }
}

void Optimizer::zero_grad() {
  for (const auto& group : groups_) {
    for (const auto& [name, parameter] : group.parameters) parameter.set_grad(Tensor());
  }
}

Tensor Optimizer::one_per_block(const NamedTensor& parameter) const {
  return whole_state(parameter.tensor, {missing_.num_blocks(parameter.name)}, Dtype::kInt64);
}

void Optimizer::keep(std::function<NamedTensors(const ParamGroup&, const NamedTensor&)> make) {
  make_state_ = std::move(make);
  states_.resize(all_parameters().size());
  make_states(states_);
}

void Optimizer::make_states(States& states, const std::set<std::string_view>& names) const {
  if (states.empty()) return;
  const MemoryTagGuard tag(MemoryTag::kOptimizer);
  auto state = states.begin();
  for (const auto& group : groups_) {
    for (const auto& parameter : group.parameters) {
      const auto& [name, tensor] = parameter;
      const bool wanted = tensor.requires_grad() || tensor.grad().defined() || names.contains(name);
      if (wanted && !*state) *state = make_state_(group, parameter);
      ++state;
    }
  }
}

Tensor Optimizer::kept(std::size_t index, std::string_view key) const {
  make_states(states_);
  if (!states_.at(index)) return {};
  const auto& tensors = *states_[index];
  const auto found = std::ranges::find(tensors, key, &NamedTensor::name);
  return found == tensors.end() ? Tensor() : found->tensor;
}

NamedTensors Optimizer::named(const States& states) const {
  NamedTensors all;
  const auto parameters = all_parameters();
  for (std::size_t i = 0; i < states.size(); ++i) {
    if (!states[i]) continue;
    for (const auto& [key, tensor] : *states[i]) {
      all.push_back({parameters[i].name + '.' + key, tensor});
    }
  }
  return all;
}

NamedTensors Optimizer::state_dict() const {
  make_states(states_);
  return named(states_);
}

void Optimizer::load_state_dict(const NamedTensors& state) {
  std::set<std::string_view> names;  // of parameters
  for (const auto& [name, tensor] : state) {
    names.insert(std::string_view(name).substr(0, name.rfind('.')));
  }
  auto states = states_;
  make_states(states, names);
  load_state("optimizer load_state_dict", named(states), state);
  states_ = std::move(states);
}

void Optimizer::set_lr(double lr) {
  check_rate("set_lr: lr", lr);
  for (auto& group : groups_) group.lr = lr;
}

void Optimizer::set_lr(std::size_t group, double lr) {
  check<ValueError>(group < groups_.size(), "set_lr: group must be in [0, ", groups_.size(),
                    "), got ", group);
  check_rate("set_lr: lr", lr);
  groups_[group].lr = lr;
}

void Optimizer::scale_lr(double factor) {
  check_rate("scale_lr: factor", factor);
  for (std::size_t i = 0; i < groups_.size(); ++i) groups_[i].lr = factor * base_lrs_[i];
}

void Optimizer::mark_used(const std::string& name, std::span<const std::int64_t> uses) {
  missing_.mark_used(name, uses);
}

}  // namespace moegrad::optim
