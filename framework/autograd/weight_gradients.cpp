// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/weight_gradients.h"

#include <algorithm>
#include <set>
#include <utility>

#include "framework/autograd/graph_task.h"
#include "framework/runtime/error.h"
#include "framework/runtime/grad_mode.h"
#include "framework/tensor/tensor_impl.h"

namespace moegrad {

WeightGradientQueue::WeightGradientQueue() : waiting_(std::make_shared<WaitingGradients>()) {}

std::size_t WeightGradientQueue::size() const { return waiting_->list.size(); }

std::int64_t WeightGradientQueue::held_bytes() const {
  std::set<const Storage*> held;
  for (const auto& waiting : waiting_->list) {
    for (const auto& grad : waiting.grads) {
      if (grad.defined()) held.insert(&grad.storage());
    }
    for (const auto* saved : waiting.function->saved()) held.insert(saved->storage());
  }
  held.erase(nullptr);
  for (const auto& waiting : waiting_->list) {
    held.erase(&waiting.function->edges()[waiting.input].leaf.storage());
  }
  std::int64_t bytes = 0;
  for (const auto* storage : held) bytes += storage->bytes();
  return bytes;
}

void WeightGradientQueue::drain(std::size_t count) {
  auto* const task = GraphTask::current();
  if (task != nullptr && task->computes_waiting()) return;
  auto& list = waiting_->list;
  for (; count > 0 && !list.empty(); --count) {
    check(task != nullptr && &task->root() == list.front().backward,
          "weight gradient queue: drain() must be called by a hook of the backward that has put "
          "them off");
    task->compute_waiting(0);
  }
}

bool GraphTask::only_waits(const Tensor& leaf) const {
  const auto& leaves = root_.leaves_;
  const auto pending = leaves.find(leaf.impl().get());
  return pending != leaves.end() && pending->second.waiting > 0 &&
         pending->second.waiting == edges_to_come(leaf);
}

InputMask GraphTask::may_wait(const Function& function, InputMask asked) {
  InputMask waiting;
  if (root_.queue_ == nullptr || root_.is_first_of_two() || function.recomputes()) return waiting;
  for (std::size_t i = 0; i < function.edges().size(); ++i) {
    const auto& leaf = function.edges()[i].leaf;
    if (!asked[i] || !leaf.defined() || !function.may_wait(i)) continue;
    const auto* const accumulator = leaf.impl()->leaf_state().accumulator;
    if (accumulator != nullptr && !accumulator->takes_later()) continue;
    if (root_.leaves_.contains(leaf.impl().get())) waiting.set(i);
  }
  return waiting;
}

// Each counts as an edge of the root, so that the leaf is not complete before it has come. Without
// any, backward needs nothing more of the Function.
void GraphTask::put_off(Function& function, InputMask inputs, const TensorList& grads) {
  if (!inputs.any()) return release(function);
  for (std::size_t i = 0; i < function.edges().size(); ++i) {
    if (!inputs[i]) continue;
    auto& pending = root_.pending(function.edges()[i].leaf);
    ++pending.edges;
    ++pending.waiting;
    root_.queue_->list.push_back({function.shared_from_this(), i, grads, &root_});
  }
}

void GraphTask::compute_waiting(std::size_t position) {
  auto& queue = root_.queue_->list;
  const auto at = queue.begin() + static_cast<std::ptrdiff_t>(position);
  const auto waiting = std::move(*at);
  queue.erase(at);
  auto& function = *waiting.function;
  const auto& leaf = function.edges()[waiting.input].leaf;
  auto& pending = root_.pending(leaf);
  --pending.waiting;
  const NoGradGuard no_grad;
  const bool outer_late = std::exchange(root_.late_, true);
  InputMask needs;
  needs.set(waiting.input);
  try {
    TensorList input_grads = gradients_of_inputs(function, waiting.grads, needs);
    if (!root_.waits(function)) release(function);
    auto& grad = input_grads[waiting.input];
    if (grad.defined()) pass(function, waiting.input, std::move(grad), {});
    --pending.edges;
    complete_if_last(leaf, pending);
  } catch (Error& error) {
    if (function.scope()) error.add_module(function.scope()->path());
    throw;
  }
  root_.late_ = outer_late;
}

bool GraphTask::waits(const Function& function) const {
  return queue_ != nullptr && std::ranges::any_of(queue_->list, [&](const auto& waiting) {
           return waiting.function.get() == &function;
         });
}

void GraphTask::compute_waiting_for(const Tensor& leaf) {
  const auto pending = root_.leaves_.find(leaf.impl().get());
  if (pending == root_.leaves_.end()) return;
  while (pending->second.waiting > 0) {
    const auto& queue = root_.queue_->list;
    const auto first = std::ranges::find_if(queue, [&](const auto& waiting) {
      return waiting.backward == &root_ && waiting.function->edges()[waiting.input].leaf.is(leaf);
    });
    compute_waiting(static_cast<std::size_t>(first - queue.begin()));
  }
}

void GraphTask::compute_all_waiting() {
  check(!late_,
        "weight gradient queue: the error of a gradient that waited must end the backward, but a "
        "hook has caught it");
  if (queue_ == nullptr) return;
  const auto own = [this](const auto& waiting) { return waiting.backward == this; };
  auto& queue = queue_->list;
  for (auto at = std::ranges::find_if(queue, own); at != queue.end();
       at = std::ranges::find_if(queue, own)) {
    compute_waiting(static_cast<std::size_t>(at - queue.begin()));
  }
}

}  // namespace moegrad
