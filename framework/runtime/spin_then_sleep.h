// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace moegrad {

// Note [Waiting]
// A training step has some hundreds of parallel loops with little between them. On a virtual
// machine it takes 50 to 100 microseconds to wake a sleeping thread: measured, 6 % of a step of 200
// ms on two threads. So a waiting thread polls for about twice that time and sleeps only then. At
// worst the wait costs a few times what sleeping at once would. The thread yields between polls, so
// that threads with work run if there are more threads than cores.
//
// Method: A. Karlin et al., Empirical Studies of Competitive Spinning for a Shared-Memory
// Multiprocessor, SOSP 1991.

/// Lets threads wait until a condition holds. The condition must read atomics only. Code that
/// changes one of them must do so in sequentially consistent order and call wake() afterwards: then
/// either the sleeper sees the change or wake() sees the sleeper. Must outlive every wake().
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
    { const std::lock_guard lock(mutex_); }  // now no thread is between its check and its sleep
    awake_.notify_all();
  }

 private:
  static constexpr std::chrono::microseconds kSpin{200};

  std::mutex mutex_;
  std::condition_variable awake_;
  std::atomic<int> sleepers_ = 0;
};

}  // namespace moegrad
