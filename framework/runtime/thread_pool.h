// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "framework/runtime/spin_then_sleep.h"

namespace moegrad {

/// Workers that help the compute threads of one rank, one run() at a time: while one thread's run()
/// has the workers, another's executes its tasks by itself. Idle workers wait as in Note [Waiting].
class ThreadPool {
 public:
  /// `threads` counts the calling thread, so 1 starts none. Error if the system gives fewer.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  /// Calls task(0), ..., task(tasks - 1), each once, on any thread, and returns when all are done.
  /// If tasks throw, it then rethrows the exception of the lowest task.
  void run(std::int64_t tasks, const std::function<void(std::int64_t)>& task);

 private:
  void work();
  bool run_one();

  std::vector<std::thread> workers_;
  std::atomic<bool> busy_ = false;  // a run() has the workers
  // A thread that has taken a task from `untaken_` may read these two: the run() that set them does
  // not return before that task is done.
  const std::function<void(std::int64_t)>* task_ = nullptr;
  std::int64_t tasks_ = 0;
  std::atomic<std::int64_t> untaken_ = 0;
  std::atomic<std::int64_t> unfinished_ = 0;
  std::atomic<bool> stop_ = false;
  SpinThenSleep for_work_;
  SpinThenSleep for_the_last_;
};

}  // namespace moegrad
