// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "framework/distributed/collective_history.h"
#include "framework/distributed/engine/engine_call.h"
#include "framework/distributed/engine/transport.h"
#include "framework/distributed/launch_options.h"

namespace moegrad {

class Engine;

/// What has gone wrong first.
struct Failure {
  std::string cause;
  std::string origin = {};  // describe() of the call that has found it; empty if it was none
  LineKey line = {};
  std::int64_t sequence = -1;
  bool rank_threw = false;
};

/// What those ranks of a launch share that are in this process: all of them where ranks are
/// threads, one where they are processes.
class LaunchState {
 public:
  /// `name`: of the function that launches, for messages.
  LaunchState(std::string name, LaunchOptions options, int world_size);
  LaunchState(const LaunchState&) = delete;
  LaunchState& operator=(const LaunchState&) = delete;

  const std::string name;
  const LaunchOptions options;
  const int world_size;

  /// The host of each rank of the world (ProcessGroup::hosts); empty where all share one.
  std::vector<int> hosts;

  std::mutex mutex;
  // Guarded by it.
  std::vector<Engine*> engines;
  bool stopped = false;  // the bodies of all ranks have ended: later calls throw

  /// How long the process has run (RunningClock), told by one thread at intervals.
  CollectiveClock::duration running() const { return clock_.elapsed(); }
  void advance(CollectiveClock::time_point now) { clock_.advance(now); }

  bool has_failed() const { return failed_; }
  // With the mutex held:
  const Failure& failure() const { return *failure_; }
  /// How errors of other calls name it.
  const std::string& failure_text() const { return failure_text_; }
  /// Poisons the launch, once: every pending call has an error now, and every later one throws.
  void fail(Failure failure);
  /// What a rank of another process did last.
  void set_history(int rank, std::vector<HistoryLine> lines);
  /// Where any thread may carry calls on: does so on all ranks that have been woken, but for what
  /// takes time, until none is.
  void carry_on(EngineLock& lock);
  /// Warns of excuses that take long, and of ranks that do not return after a failure, at which the
  /// process may end. Unlocks for that.
  void watch(EngineLock& lock, CollectiveClock::time_point now);

  /// Passes the report of a failure to LaunchOptions::on_failure, once. Without the mutex.
  void report_failure();

 private:
  void watch_the_stuck(EngineLock& lock);
  std::string history_report() const;
  bool has_rank_0() const;

  RunningClock clock_;
  std::atomic<bool> failed_ = false;
  std::optional<Failure> failure_;
  std::string failure_text_;
  CollectiveClock::duration failed_at_{0};                          // running time
  std::vector<std::optional<std::vector<HistoryLine>>> histories_;  // by rank, after a failure
  bool reported_ = false;
  bool reported_stuck_ = false;
  CollectiveClock::time_point warns_at_;
};

}  // namespace moegrad
