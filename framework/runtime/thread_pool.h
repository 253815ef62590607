// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace moegrad {

/// Workers that help one rank's compute thread. Only run() uses them, and only one run() at a
/// time: the pool belongs to the rank that made it.
class ThreadPool {
 public:
  /// `threads` counts the calling thread, so 1 starts none.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  /// Calls task(0), ..., task(tasks - 1), each once, on any thread, and returns when all are done.
  void run(std::int64_t tasks, const std::function<void(std::int64_t)>& task);

 private:
  void work();

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable idle_;
  const std::function<void(std::int64_t)>* task_ = nullptr;
  std::int64_t tasks_ = 0;
  std::int64_t next_ = 0;
  std::int64_t running_ = 0;
  bool stop_ = false;
};

}  // namespace moegrad
