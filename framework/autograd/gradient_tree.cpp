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

// earlier + later, in the buffer of `earlier`.
Tensor combine(Tensor earlier, const Tensor& later) {
  if (!earlier.defined()) return later;
  if (!later.defined()) return earlier;
  if (earlier.dtype() != Dtype::kBFloat16) {
    add_(earlier, later);
    return earlier;
  }
  const auto sum = earlier.mutable_data<BFloat16>();
  const auto term = later.data<BFloat16>();
  for (std::size_t i = 0; i < sum.size(); ++i) {
    sum[i] = BFloat16(static_cast<float>(sum[i]) + static_cast<float>(term[i]));
  }
  return earlier;
}

void combine(TensorList& earlier, TensorList later) {
  for (std::size_t i = 0; i < earlier.size(); ++i) {
    earlier[i] = combine(std::move(earlier[i]), later[i]);
    later[i] = Tensor();
  }
}

}  // namespace

GradientTree::GradientTree(TensorList parameters, std::optional<Dtype> node_dtype)
    : parameters_(std::move(parameters)), node_dtype_(node_dtype) {
  check<DtypeError>(node_dtype != Dtype::kInt64,
                    "gradient_tree: nodes must be of a floating dtype, got int64");
}

void GradientTree::push() {
  const MemoryTagGuard tag(MemoryTag::kGradients);
  TensorList node;
  for (const auto& parameter : parameters_) {
    node.push_back(take_grad(parameter, node_dtype_.value_or(parameter.dtype())));
  }
  // Each trailing set bit of the counter is a finished subtree as large as `node`: carry.
  for (auto carry = size_; (carry & 1) != 0; carry >>= 1) {
    combine(partials_.back(), std::move(node));
    node = std::move(partials_.back());
    partials_.pop_back();
  }
  partials_.push_back(std::move(node));
  ++size_;
}

void GradientTree::finish() {
  for (const auto& parameter : parameters_) {
    check(!parameter.grad().defined(), "gradient_tree: finish() would overwrite the gradient of '",
          parameter.storage().name(), "', which was not pushed");
  }
  if (size_ == 0) return;
  const MemoryTagGuard tag(MemoryTag::kGradients);
  while (partials_.size() > 1) {
    TensorList later = std::move(partials_.back());
    partials_.pop_back();
    combine(partials_.back(), std::move(later));
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Tensor root = std::move(partials_.back()[i]);
    if (root.defined() && root.dtype() != parameters_[i].dtype()) {
      root = to_dtype(root, parameters_[i].dtype());
    }
    parameters_[i].set_grad(std::move(root));
  }
  partials_.clear();
  size_ = 0;
}

}  // namespace moegrad
