// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "framework/autograd/weight_gradients.h"
#include "nn/module.h"

namespace moegrad::test {

/// When a queue of weight gradients is drained. Without a queue, never put off.
enum class Drained { kNoQueue, kAtOnce, kAtTheEnd, kAtRandomPoints };
inline constexpr Drained kDrained[] = {Drained::kAtOnce, Drained::kAtTheEnd,
                                       Drained::kAtRandomPoints};

/// A queue that hooks of all modules below `root` drain, while it lives: each time that the tape
/// enters or leaves one.
class DrainedQueue {
 public:
  DrainedQueue(nn::Module& root, Drained drained, std::uint64_t seed)
      : drained_(drained), draws_(seed) {
    if (drained == Drained::kNoQueue) return;
    guard_.emplace(queue_);
    for (const auto& [path, module] : root.named_modules()) {
      handles_.push_back(module->register_backward_pre_hook([this](nn::Module&) { drain(); }));
      handles_.push_back(module->register_backward_hook([this](nn::Module&) { drain(); }));
    }
  }
  ~DrainedQueue() {
    for (auto& handle : handles_) handle.remove();
  }
  DrainedQueue(const DrainedQueue&) = delete;
  DrainedQueue& operator=(const DrainedQueue&) = delete;

  const WeightGradientQueue& queue() const { return queue_; }
  /// The most that ever waited at a hook.
  std::size_t most() const { return most_; }

 private:
  void drain() {
    most_ = std::max(most_, queue_.size());
    if (drained_ == Drained::kAtOnce) queue_.drain();
    if (drained_ == Drained::kAtRandomPoints) queue_.drain(draws_() % 4);
  }

  Drained drained_;
  std::mt19937 draws_;
  std::size_t most_ = 0;
  WeightGradientQueue queue_;
  std::optional<WeightGradientsGuard> guard_;
  std::vector<HookHandle> handles_;
};

}  // namespace moegrad::test
