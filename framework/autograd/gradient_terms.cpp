// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/gradient_terms.h"

#include <utility>

#include "framework/runtime/arena.h"
#include "framework/tensor/fill.h"
#include "framework/tensor/tensor_impl.h"

namespace moegrad {
namespace {

// The leaf that the gradient goes to, through views and other Functions of one input. Undefined if
// there is none.
Tensor leaf_behind(const Edge& edge) {
  const auto* at = &edge;
  while (at->function != nullptr && at->function->edges().size() == 1) {
    at = &at->function->edges().front();
  }
  return at->leaf;
}

}  // namespace

GradientTerms::GradientTerms(const Function& function, std::size_t i)
    : dtype_(function.edges().at(i).dtype), node_dtype_(dtype_) {
  const Tensor leaf = leaf_behind(function.edges()[i]);
  if (!leaf.defined()) return;
  auto& state = leaf.impl()->leaf_state();
  node_dtype_ = state.node_dtype.value_or(dtype_);
  state.summed_terms = true;
}

void GradientTerms::push(Tensor term) {
  const MemoryTagGuard tag(MemoryTag::kGradients);
  sum_.push(node_dtype_ == dtype_ ? std::move(term) : to_dtype(term, node_dtype_));
}

Tensor GradientTerms::take() {
  const MemoryTagGuard tag(MemoryTag::kGradients);
  Tensor sum = sum_.take();
  return node_dtype_ == dtype_ ? sum : to_dtype(sum, dtype_);
}

}  // namespace moegrad
