// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/thread_pool.h"

#include "framework/runtime/error.h"

namespace moegrad {

ThreadPool::ThreadPool(int threads) {
  check<ValueError>(threads >= 1, "thread pool: threads must be at least 1, got ", threads);
  workers_.reserve(static_cast<std::size_t>(threads - 1));
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void ThreadPool::run(std::int64_t tasks, const std::function<void(std::int64_t)>& task) {
  if (workers_.empty() || tasks <= 1) {
    for (std::int64_t i = 0; i < tasks; ++i) task(i);
    return;
  }
  std::unique_lock lock(mutex_);
  task_ = &task;
  tasks_ = tasks;
  next_ = 0;
  wake_.notify_all();
  while (next_ < tasks_) {
    const auto i = next_++;
    ++running_;
    lock.unlock();
    task(i);
    lock.lock();
    --running_;
  }
  idle_.wait(lock, [this] { return running_ == 0; });
  task_ = nullptr;
  tasks_ = 0;
  next_ = 0;
}

void ThreadPool::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stop_ || next_ < tasks_; });
    if (stop_) return;
    const auto i = next_++;
    ++running_;
    const auto* task = task_;
    lock.unlock();
    (*task)(i);
    lock.lock();
    if (--running_ == 0 && next_ >= tasks_) idle_.notify_one();
  }
}

}  // namespace moegrad
