// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/leaf_gradients.h"

#include "framework/autograd/engine.h"
#include "framework/autograd/graph_task.h"
#include "framework/tensor/tensor_impl.h"

namespace moegrad {

void GradientArrivals::add(const Tensor& leaf, Tensor grad, const GradientPlace& place,
                           Tensor& target) {
  const bool apart = place.sources > 1 || backward_micro_batches() > 1 || backward_parts() > 1;
  if (apart || !leaf.impl()->leaf_state().hooks.empty()) {
    waiting_.add(std::move(grad), place);
  } else {
    accumulate_gradient(target, std::move(grad));
  }
}

TensorList GradientArrivals::complete(const Tensor& leaf) {
  TensorList sums = waiting_.take();
  for (auto& sum : sums) {
    if (!sum.defined()) continue;
    for (const auto& hook : leaf.impl()->leaf_state().hooks.snapshot()) {
      Tensor replaced = hook(sum);
      if (replaced.defined()) sum = std::move(replaced);
    }
    check_gradient(sum, leaf.shape(), leaf.dtype(), "backward: a hook's gradient of leaf '",
                   leaf.storage().name(), "'");
  }
  return sums;
}

void AddToGrad::add(Tensor grad, const GradientPlace& place) {
  arrivals_.add(leaf_, std::move(grad), place, leaf_.impl()->leaf_state().grad);
  mark_gradient(*leaf_.impl());
}

void AddToGrad::complete() {
  TensorList sums = arrivals_.complete(leaf_);
  if (!sums.empty()) {
    accumulate_gradient(leaf_.impl()->leaf_state().grad, sum_in_tree(std::move(sums)));
    mark_gradient(*leaf_.impl());
  }
  run_post_accumulate_hooks(leaf_);
}

void run_post_accumulate_hooks(const Tensor& leaf) {
  for (const auto& hook : leaf.impl()->leaf_state().post_accumulate_hooks.snapshot()) hook(leaf);
}

}  // namespace moegrad
