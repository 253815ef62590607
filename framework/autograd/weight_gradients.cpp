// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/weight_gradients.h"

#include <set>

#include "framework/autograd/graph_task.h"
#include "framework/runtime/error.h"

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

}  // namespace moegrad
