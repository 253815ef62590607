// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/use_sums.h"

#include <utility>

#include "framework/tensor/fill.h"
#include "framework/tensor/tensor_impl.h"

namespace moegrad {

Tensor sum_of_uses(TensorList uses) {
  const MemoryTagGuard tag(MemoryTag::kGradients);
  Tensor sum;
  for (auto& use : uses) {
    const Tensor term = std::exchange(use, Tensor());
    if (sum.defined() && term.defined() && !owns_its_bytes(sum)) sum = clone(sum);
    sum = add_terms(std::move(sum), term);
  }
  return sum;
}

UseSums::UseSums(TensorList sums, std::int64_t size) : trees_() {
  for (auto& sum : sums) trees_.emplace_back(std::move(sum), size);
}

void UseSums::push(TensorList terms) {
  while (terms.size() > trees_.size() && !terms.back().defined()) terms.pop_back();
  while (trees_.size() < terms.size()) trees_.push_back(absent_terms(size()));
  terms.resize(trees_.size());
  for (std::size_t use = 0; use < terms.size(); ++use) {
    trees_[use].push(std::exchange(terms[use], Tensor()));
  }
}

void UseSums::drop() { trees_ = {absent_terms(size())}; }

Tensor UseSums::sum() const {
  TensorList sums;
  for (const auto& tree : trees_) sums.push_back(tree.sum());
  return sum_of_uses(std::move(sums));
}

TensorList UseSums::take() {
  TensorList sums;
  for (auto& tree : trees_) sums.push_back(tree.take());
  trees_.resize(1);
  return sums;
}

ShownGradient::ShownGradient(const Tensor& grad)
    : defined(grad.defined()), impl(grad.impl()), version(defined ? grad.storage().version() : 0) {}

bool ShownGradient::is_still(const Tensor& grad) const {
  if (!defined || !grad.defined()) return defined == grad.defined();
  return grad.impl() == impl.lock() && grad.storage().version() == version;
}

void set_grad_of_uses(const Tensor& leaf, TensorList uses) {
  const MemoryTagGuard tag(MemoryTag::kGradients);
  const auto in_its_dtype = [dtype = arithmetic_dtype(leaf.dtype())](const Tensor& tensor) {
    return tensor.defined() && tensor.dtype() != dtype ? to_dtype(tensor, dtype) : tensor;
  };
  Tensor sum = sum_of_uses(uses);
  if (!sum.defined()) return;
  leaf.set_grad(in_its_dtype(sum));
  if (uses.size() == 1) return;
  for (auto& use : uses) use = in_its_dtype(use);
  auto& state = leaf.impl()->leaf_state();
  state.uses = std::make_shared<GradientUses>(
      GradientUses{.gradients = std::move(uses), .shown = ShownGradient(state.grad)});
}

TensorList take_grad_of_uses(const Tensor& leaf) {
  auto& state = leaf.impl()->leaf_state();
  const auto uses = std::exchange(state.uses, nullptr);
  const Tensor grad = std::exchange(state.grad, Tensor());
  if (uses != nullptr && uses->shown.is_still(grad)) return std::move(uses->gradients);
  return {grad};
}

}  // namespace moegrad
