// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/leaf_gradients.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "framework/autograd/engine.h"
#include "framework/autograd/graph_task.h"
#include "framework/autograd/use_sums.h"
#include "framework/runtime/arena.h"
#include "framework/runtime/error.h"
#include "framework/tensor/fill.h"
#include "framework/tensor/tensor_impl.h"

namespace moegrad {
namespace {

template <class T>
T& at(std::vector<T>& list, int position) {
  const auto i = static_cast<std::size_t>(position);
  if (list.size() <= i) list.resize(i + 1);
  return list[i];
}

}  // namespace

void accumulate_gradient(Tensor& sum, Tensor grad) {
  const MemoryTagGuard tag(MemoryTag::kGradients);
  if (!sum.defined()) {
    // The buffer becomes the leaf's own: another reader must not see later sums.
    sum = owns_its_bytes(grad) ? std::move(grad) : clone(grad);
    sum.storage().retag(MemoryTag::kGradients);
    return;
  }
  if (!owns_its_bytes(sum)) sum = clone(sum);
  add_(sum, grad.is_contiguous() ? grad : clone(grad));
}

Tensor sum_in_tree(TensorList terms) {
  if (terms.size() == 1) return std::move(terms.front());
  TreeSum tree;
  for (auto& term : terms) {
    Tensor own;
    if (term.defined()) accumulate_gradient(own, std::exchange(term, Tensor()));
    tree.push(std::move(own));
  }
  return tree.take();
}

void PlacedSum::add(Tensor grad, const GradientPlace& place) {
  check<ValueError>(0 <= place.source && place.source < place.sources,
                    "gradient place: source must be in [0, ", place.sources, "), got ",
                    place.source);
  auto& part = at(at(at(sums_, place.use), place.micro_batch), place.part);
  if (place.sources > 1) return add_source(part, std::move(grad), place);
  accumulate_gradient(part.sum, std::move(grad));
}

void PlacedSum::add_source(PartSum& part, Tensor grad, const GradientPlace& place) const {
  auto& waiting = part.by_source;
  if (waiting.empty()) waiting.resize(static_cast<std::size_t>(place.sources));
  check<ValueError>(std::ssize(waiting) == place.sources, "gradient place: sources must be ",
                    waiting.size(), " as before, got ", place.sources);
  accumulate_gradient(waiting[static_cast<std::size_t>(place.source)], std::move(grad));
  if (place.last_use && part.tree.size() == place.source) push_source(part);
}

// The next source's sum becomes a leaf of the tree.
void PlacedSum::push_source(PartSum& part) const {
  const MemoryTagGuard tag(MemoryTag::kGradients);
  auto& waiting = part.by_source[static_cast<std::size_t>(part.tree.size())];
  Tensor sum = std::exchange(waiting, Tensor());
  if (sum.defined()) part.dtype = sum.dtype();
  const bool rounded = sum.defined() && node_dtype_ && *node_dtype_ != sum.dtype();
  part.tree.push(rounded ? to_dtype(sum, *node_dtype_) : std::move(sum));
}

Tensor PlacedSum::take(PartSum& part) const {
  Tensor all;
  // More than once only if something came after what was said to be the last use.
  while (part.tree.size() > 0 || std::ranges::any_of(part.by_source, &Tensor::defined)) {
    while (part.tree.size() < std::ssize(part.by_source)) push_source(part);
    const MemoryTagGuard tag(MemoryTag::kGradients);
    Tensor sum = part.tree.take();
    if (sum.dtype() != part.dtype) sum = to_dtype(sum, part.dtype);
    accumulate_gradient(all, std::move(sum));
  }
  if (part.sum.defined()) accumulate_gradient(all, std::move(part.sum));
  return all;
}

std::vector<TensorList> PlacedSum::take() {
  std::vector<TensorList> sums;
  for (auto& micro_batches : std::exchange(sums_, {})) {
    auto& own = sums.emplace_back();
    for (auto& parts : micro_batches) {
      TensorList terms;
      for (auto& part : parts) terms.push_back(take(part));
      own.push_back(sum_in_tree(std::move(terms)));
    }
  }
  return sums;
}

void GradientArrivals::add(const Tensor& leaf, Tensor grad, GradientPlace place, Tensor& target) {
  const auto& state = leaf.impl()->leaf_state();
  const bool hooked = !state.hooks.empty();
  if (hooked) place.use = 0;
  const bool apart = place.sources > 1 || backward_micro_batches() > 1 || backward_parts() > 1 ||
                     place.use > 0 || state.uses != nullptr;
  if (apart || hooked) {
    waiting_.add(std::move(grad), place);
  } else {
    accumulate_gradient(target, std::move(grad));
  }
}

std::vector<TensorList> GradientArrivals::complete(const Tensor& leaf) {
  auto sums = waiting_.take();
  for (auto& micro_batches : sums) {
    for (auto& sum : micro_batches) {
      if (!sum.defined()) continue;
      sum = leaf.impl()->leaf_state().hooks.replace(std::move(sum));
      check_gradient(sum, leaf.shape(), arithmetic_dtype(leaf.dtype()),
                     "backward: a hook's gradient of leaf '", leaf.storage().name(), "'");
    }
  }
  return sums;
}

void AddToGrad::add(Tensor grad, const GradientPlace& place) {
  arrivals_.add(leaf_, std::move(grad), place, leaf_.impl()->leaf_state().grad);
  mark_gradient(*leaf_.impl());
}

void AddToGrad::complete() {
  auto arrived = arrivals_.complete(leaf_);
  if (!arrived.empty()) {
    TensorList uses = take_grad_of_uses(leaf_);
    if (uses.size() < arrived.size()) uses.resize(arrived.size());
    for (std::size_t use = 0; use < arrived.size(); ++use) {
      Tensor sum = sum_in_tree(std::move(arrived[use]));
      if (sum.defined()) accumulate_gradient(uses[use], std::move(sum));
    }
    set_grad_of_uses(leaf_, std::move(uses));
  }
  run_post_accumulate_hooks(leaf_);
}

void run_post_accumulate_hooks(const Tensor& leaf) {
  for (const auto& hook : leaf.impl()->leaf_state().post_accumulate_hooks.snapshot()) hook(leaf);
}

}  // namespace moegrad
