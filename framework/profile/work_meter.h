// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

namespace moegrad {

/// What a rank spends its time on.
enum class WorkClass : std::uint8_t { kCompute, kCommunication, kData, kCheckpoint };
inline constexpr std::size_t kWorkClasses = 4;
/// "compute", "communication", "data", "checkpoint".
std::string_view to_string(WorkClass what);

/// Time per WorkClass.
using WorkTimes = std::array<std::chrono::nanoseconds, kWorkClasses>;

/// How long one rank has worked, on all its threads; see Note [Slow ranks].
class WorkTotals {
 public:
  void add(WorkClass what, std::chrono::nanoseconds time) {
    sums_[static_cast<std::size_t>(what)].fetch_add(time.count(), std::memory_order_relaxed);
  }
  WorkTimes read() const {
    WorkTimes times{};
    for (std::size_t i = 0; i < kWorkClasses; ++i) {
      times[i] = std::chrono::nanoseconds(sums_[i].load(std::memory_order_relaxed));
    }
    return times;
  }

 private:
  std::array<std::atomic<std::int64_t>, kWorkClasses> sums_{};
};

/// One thread's part of the WorkTotals. A wait is time in which the thread does no work of its own.
class WorkMeter {
 public:
  explicit WorkMeter(std::shared_ptr<WorkTotals> totals) : totals_(std::move(totals)) {}

  const std::shared_ptr<WorkTotals>& totals() const { return totals_; }
  void add_wait(std::chrono::nanoseconds time) { elsewhere_ += time; }

 private:
  friend class WorkGuard;

  std::shared_ptr<WorkTotals> totals_;
  std::chrono::nanoseconds elsewhere_{0};  // in waits and in guards that have ended
};

/// Adds the wall time from here to the end of the scope to the current rank's totals, under `what`.
/// The thread's waits and the time that inner guards count are subtracted.
class [[nodiscard]] WorkGuard {
 public:
  explicit WorkGuard(WorkClass what);
  ~WorkGuard();
  WorkGuard(const WorkGuard&) = delete;
  WorkGuard& operator=(const WorkGuard&) = delete;

 private:
  WorkClass what_;
  WorkMeter& meter_;
  std::chrono::nanoseconds elsewhere_before_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace moegrad
