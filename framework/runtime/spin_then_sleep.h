// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace moegrad {

// Note [Waiting]
// A training step has some hundreds of parallel loops with little between them, and to wake a
// sleeping thread takes 50 to 100 microseconds of a virtual machine: measured, 6 % of a step of 200
// ms on two threads. So who waits looks again and again for about twice that time and sleeps only
// then: at worst the wait costs a few times what sleeping at once would. Between looks it yields,
// so that with more threads than cores it is those with work that run.
//
// Method: A. Karlin et al., Empirical Studies of Competitive Spinning for a Shared-Memory
// Multiprocessor, SOSP 1991.

/// Where threads wait until a condition holds. The condition reads atomics alone, and whoever
/// changes one of them does so in sequentially consistent order and calls wake() afterwards: then
/// either the sleeper sees the change or wake() sees the sleeper. Has to outlive every wake().
class SpinThenSleep {
 public:
  /// Returns when `ready()` is true.
  template <class Ready>
  void wait(const Ready& ready) {
    const auto deadline = std::chrono::steady_clock::now() + kSpin;
    do {
      if (ready()) return;
      std::this_thread::yield();
    } while (std::chrono::steady_clock::now() < deadline);
    std::unique_lock lock(mutex_);
    ++sleepers_;
    awake_.wait(lock, ready);
    --sleepers_;
  }

  void wake() {
    if (sleepers_ == 0) return;
    { const std::lock_guard lock(mutex_); }  // nobody is between looking and sleeping
    awake_.notify_all();
  }

 private:
  static constexpr std::chrono::microseconds kSpin{200};

  std::mutex mutex_;
  std::condition_variable awake_;
  std::atomic<int> sleepers_ = 0;
};

}  // namespace moegrad
