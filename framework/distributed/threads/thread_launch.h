// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <memory>
#include <thread>
#include <vector>

#include "framework/distributed/engine/engine.h"
#include "framework/distributed/threads/thread_transport.h"
#include "framework/runtime/log.h"

namespace moegrad {

/// A launch whose ranks are threads: an engine for each, the threads that execute their calls, and
/// one that watches the time.
class ThreadLaunch {
 public:
  ThreadLaunch(int world_size, LaunchOptions options);
  ~ThreadLaunch() { stop(); }
  ThreadLaunch(const ThreadLaunch&) = delete;
  ThreadLaunch& operator=(const ThreadLaunch&) = delete;

  /// Starts the threads; the one that watches logs at `log_level`.
  void start(LogLevel log_level);
  /// Ends them, after the bodies of all ranks have ended. Later calls throw.
  void stop();

  const std::shared_ptr<LaunchState>& state() const { return state_; }
  const std::shared_ptr<Engine>& engine(int rank) const {
    return engines_[static_cast<std::size_t>(rank)];
  }

 private:
  void serve(std::size_t rank);
  void watch(LogLevel log_level);

  std::shared_ptr<LaunchState> state_;
  std::shared_ptr<ThreadRanks> ranks_;
  std::vector<std::shared_ptr<Engine>> engines_;
  std::vector<std::thread> threads_;  // of the ranks, beside their bodies
  bool joined_ = false;               // none of them is left
  std::condition_variable unwatched_;
  std::thread watcher_;
};

}  // namespace moegrad
