// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

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

/// Tells the WorkGuards of the calling thread that it has waited this long. A wait is time in which
/// the thread does no work of its own.
void add_wait(std::chrono::nanoseconds time);

/// Adds the wall time from here to the end of the scope to the current rank's totals, under `what`.
/// The waits of this thread and the time that its inner guards count are subtracted.
class [[nodiscard]] WorkGuard {
 public:
  explicit WorkGuard(WorkClass what);
  ~WorkGuard();
  WorkGuard(const WorkGuard&) = delete;
  WorkGuard& operator=(const WorkGuard&) = delete;

 private:
  WorkClass what_;
  std::shared_ptr<WorkTotals> totals_;
  std::chrono::nanoseconds elsewhere_before_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace moegrad
