// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/gradient_tree.h"

#include <utility>

#include "framework/tensor/fill.h"
#include "framework/tensor/tensor_impl.h"

namespace moegrad {
namespace {

// The leaf becomes the tree's own, because sums are formed in place.
Tensor take_grad(const Tensor& parameter, Dtype dtype) {
  Tensor grad = parameter.grad();
  if (!grad.defined()) return grad;
  parameter.set_grad(Tensor());
  if (grad.dtype() != dtype) return to_dtype(grad, dtype);
  if (!owns_its_bytes(grad)) return clone(grad);
  grad.storage().retag(MemoryTag::kGradients);
  return grad;
}

}  // namespace

GradientTree::GradientTree(TensorList parameters, std::optional<Dtype> node_dtype)
    : parameters_(std::move(parameters)), node_dtype_(node_dtype), sums_(parameters_.size()) {
  if (!node_dtype) return;
  check<DtypeError>(holds_reals(*node_dtype),
                    "gradient_tree: nodes must be of a floating dtype, got ", *node_dtype);
}

void GradientTree::push() {
  const MemoryTagGuard tag(MemoryTag::kGradients);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    sums_[i].push(take_grad(parameters_[i], node_dtype_.value_or(parameters_[i].dtype())));
  }
  ++size_;
}

void GradientTree::finish() {
  for (const auto& parameter : parameters_) {
    check(!parameter.grad().defined(), "gradient_tree: finish() would overwrite the gradient of '",
          parameter.storage().name(), "', which was not pushed");
  }
  const MemoryTagGuard tag(MemoryTag::kGradients);
  TensorList roots = take();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Tensor root = std::move(roots[i]);
    if (root.defined() && root.dtype() != parameters_[i].dtype()) {
      root = to_dtype(root, parameters_[i].dtype());
    }
    parameters_[i].set_grad(std::move(root));
  }
}

TensorList GradientTree::take() {
  const MemoryTagGuard tag(MemoryTag::kGradients);
  TensorList roots;
  for (auto& sum : sums_) roots.push_back(sum.take());
  size_ = 0;
  return roots;
}

void GradientTree::drop(std::size_t i) { sums_[i] = absent_terms(size_); }

TensorList GradientTree::sums() const {
  const MemoryTagGuard tag(MemoryTag::kGradients);
  TensorList sums;
  for (const auto& sum : sums_) sums.push_back(sum.sum());
  return sums;
}

}  // namespace moegrad
