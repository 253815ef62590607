// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>

#include "framework/autograd/function.h"
#include "framework/runtime/thread_state.h"
#include "framework/tensor/tensor.h"

namespace moegrad {

class GraphTask;

/// Gradients of weights that a backward has put off.
///
/// Note [Weight gradients that wait]
/// The product that gives a weight's gradient is needed by nobody within the backward, while those
/// that give the input's are on its way. So a schedule may compute it later, when something else
/// would have to wait:
///
///     WeightGradientQueue queue;
///     const WeightGradientsGuard guard(queue);
///     loss.backward();                    // a hook calls queue.drain() where there is time
///
/// Under the guard, Functions that allow it (Function::may_wait) are asked only for the gradients
/// that are on the way. The others wait in order of arrival, each with the gradients of the
/// Function's outputs and what it has saved. drain() computes the first of them; the end of the
/// backward, all. What comes to a weight for which others wait comes after them. So every sum has
/// its terms in the order that it has without a queue, and its bits. A leaf's hooks, and a
/// reduction under fully_shard, wait for the last gradient.
///
/// The first of two calls (Note [Backward in two calls]) leaves weights to the second, and puts
/// nothing off. Method: Qi et al., "Zero bubble pipeline parallelism", 2023,
/// https://arxiv.org/abs/2401.10241
class WeightGradientQueue {
 public:
  WeightGradientQueue();
  WeightGradientQueue(const WeightGradientQueue&) = delete;
  WeightGradientQueue& operator=(const WeightGradientQueue&) = delete;

  std::size_t size() const;
  /// Bytes that they keep: the gradients of outputs, and what the Functions have saved but for the
  /// weights themselves. What several keep counts once.
  std::int64_t held_bytes() const;
  /// Computes the first `count`; none while one of them is being computed. Error outside the
  /// backward that has put them off.
  void drain(std::size_t count = std::numeric_limits<std::size_t>::max());

 private:
  friend class WeightGradientsGuard;

  // Guards and backwards share it: they may outlive the queue.
  std::shared_ptr<WaitingGradients> waiting_;
};

/// While it lives, what backward may put off in this thread waits in `queue`. The innermost guard
/// wins; a backward keeps the queue that it has begun with.
class [[nodiscard]] WeightGradientsGuard : public ThreadValueGuard<&ThreadState::weight_gradients> {
 public:
  explicit WeightGradientsGuard(WeightGradientQueue& queue) : ThreadValueGuard(queue.waiting_) {}
};

}  // namespace moegrad
