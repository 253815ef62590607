// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>

namespace moegrad {

using CollectiveClock = std::chrono::steady_clock;

/// How long a process has run, as deadlines count it. Its user passes the time to advance() at
/// intervals. However long the interval was, no more than `longest` is added. So a process that was
/// stopped as a whole (SIGSTOP, a suspended container or machine, a debugger) ages by one interval
/// only. If a single thread is stuck, the clock goes on.
class RunningClock {
 public:
  using time_point = CollectiveClock::time_point;
  using duration = CollectiveClock::duration;

  RunningClock(time_point now, duration longest) : last_(now), longest_(longest) {}

  /// Returns the time that was added.
  duration advance(time_point now) {
    const auto added = std::clamp(now - last_, duration::zero(), longest_);
    last_ = now;
    elapsed_ += added;
    return added;
  }
  duration elapsed() const { return elapsed_; }

 private:
  time_point last_;
  duration longest_;
  duration elapsed_{0};
};

}  // namespace moegrad
