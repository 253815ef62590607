// SPDX-License-Identifier: Apache-2.0
#include "fsdp/sharded_gradients.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "framework/tensor/fill.h"
#include "framework/tensor/tensor_impl.h"

namespace moegrad::fsdp {

ShardedGradients::ShardedGradients(TensorList parameters, std::optional<Dtype> dtype)
    : parameters_(std::move(parameters)),
      dtype_(dtype.value_or(parameters_.front().dtype())),
      sums_(parameters_.size()) {}

void ShardedGradients::add(TensorList terms) {
  const MemoryTagGuard tag(MemoryTag::kGradients);
  resume();
  ++size_;
  const bool one_partial = std::has_single_bit(static_cast<std::uint64_t>(size_));
  published_.clear();
  TensorList reached;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (terms[i].defined()) reached.push_back(parameters_[i]);
    const auto& parameter = parameters_[i];
    parameter.impl()->leaf_state().grad = Tensor();  // set again below, so this drops nothing
    sums_[i].push(std::exchange(terms[i], Tensor()));
    Tensor sum = one_partial ? sums_[i].take() : sums_[i].sum();
    if (sum.defined() && sum.dtype() != parameter.dtype()) sum = to_dtype(sum, parameter.dtype());
    if (sum.defined()) parameter.set_grad(std::move(sum));
  }
  for (const auto& parameter : parameters_) published_.emplace_back(parameter.grad());
  // No backward reaches the shards themselves, so their hooks run here.
  for (const auto& parameter : reached) {
    auto& hooks = parameter.impl()->leaf_state().post_accumulate_hooks;
    for (const auto& hook : hooks.snapshot()) hook(parameter);
  }
}

// Makes sums_ contain the terms so far, from grad() where it has changed.
void ShardedGradients::resume() {
  const auto has_grad = [](const Tensor& parameter) { return parameter.grad().defined(); };
  if (size_ == 0 || std::ranges::none_of(parameters_, has_grad)) return begin_again();
  if (std::has_single_bit(static_cast<std::uint64_t>(size_))) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      sums_[i] = TreeSum(as_term(parameters_[i].grad()), size_);
    }
  } else if (!untouched()) {
    begin_again();
  }
}

void ShardedGradients::begin_again() {
  size_ = 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    sums_[i] = TreeSum();
    if (parameters_[i].grad().defined()) size_ = 1;
  }
  if (size_ == 0) return;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    sums_[i].push(as_term(parameters_[i].grad()));
  }
}

bool ShardedGradients::untouched() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!published_[i].is_still(parameters_[i].grad())) return false;
  }
  return true;
}

ShardedGradients::PublishedGrad::PublishedGrad(const Tensor& grad)
    : defined(grad.defined()), impl(grad.impl()), version(defined ? grad.storage().version() : 0) {}

bool ShardedGradients::PublishedGrad::is_still(const Tensor& grad) const {
  if (!defined || !grad.defined()) return defined == grad.defined();
  return grad.impl() == impl.lock() && grad.storage().version() == version;
}

Tensor ShardedGradients::as_term(const Tensor& grad) const {
  return !grad.defined() || grad.dtype() == dtype_ ? grad : to_dtype(grad, dtype_);
}

}  // namespace moegrad::fsdp
