// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/thread_pool.h"

#include <exception>
#include <mutex>
#include <system_error>

#include "framework/runtime/error.h"

namespace moegrad {
namespace {

/// Keeps, among the exceptions of tasks, the one that a single thread would have met first.
class FirstOfTasks {
 public:
  void record(std::int64_t task) {
    const std::lock_guard lock(mutex_);
    if (failure_ != nullptr && task_ < task) return;
    failure_ = std::current_exception();
    task_ = task;
  }
  void rethrow() const {
    if (failure_ != nullptr) std::rethrow_exception(failure_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr failure_;
  std::int64_t task_ = 0;
};

}  // namespace

ThreadPool::ThreadPool(int threads) {
  check<ValueError>(threads >= 1, "thread pool: threads must be at least 1, got ", threads);
  workers_.reserve(static_cast<std::size_t>(threads - 1));
  try {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
  } catch (const std::system_error& error) {
    stop_ = true;
    for_work_.wake();
    for (auto& worker : workers_) worker.join();
    throw too_few_threads("thread pool", "threads, its caller's included",
                          static_cast<std::size_t>(threads), workers_.size() + 1, error);
  }
}

ThreadPool::~ThreadPool() {
  stop_ = true;
  for_work_.wake();
  for (auto& worker : workers_) worker.join();
}

void ThreadPool::run(std::int64_t tasks, const std::function<void(std::int64_t)>& task) {
  FirstOfTasks failure;
  const std::function<void(std::int64_t)> guarded = [&](std::int64_t i) {
    try {
      task(i);
    } catch (...) {
      failure.record(i);
    }
  };
  if (workers_.empty() || tasks <= 1 || busy_.exchange(true)) {
    for (std::int64_t i = 0; i < tasks; ++i) guarded(i);
    return failure.rethrow();
  }
  task_ = &guarded;
  tasks_ = tasks;
  unfinished_ = tasks;
  untaken_ = tasks;
  for_work_.wake();
  while (run_one()) {
  }
  for_the_last_.wait([this] { return unfinished_ == 0; });
  busy_ = false;
  failure.rethrow();
}

// Takes the next task, if there is one, and runs it.
bool ThreadPool::run_one() {
  auto untaken = untaken_.load();
  do {
    if (untaken == 0) return false;
  } while (!untaken_.compare_exchange_weak(untaken, untaken - 1));
  (*task_)(tasks_ - untaken);
  if (--unfinished_ == 0) for_the_last_.wake();
  return true;
}

void ThreadPool::work() {
  while (true) {
    for_work_.wait([this] { return stop_ || untaken_ > 0; });
    if (stop_) return;
    while (run_one()) {
    }
  }
}

}  // namespace moegrad
