// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>

namespace moegrad {

/// Time a collective would take on a slower link: latency + bytes / bandwidth. The communication
/// thread sleeps that long before it copies, so overlap with compute is visible on two cores.
struct LinkModel {
  std::chrono::nanoseconds latency{0};
  double bytes_per_second = 0;  // 0: infinite
  int slow_rank = -1;           // rank of the world that receives slow_by times as slowly
  double slow_by = 1;

  std::chrono::nanoseconds duration(std::int64_t bytes) const {
    auto time = latency;
    if (bytes_per_second > 0) {
      time += std::chrono::nanoseconds(
          static_cast<std::int64_t>(1e9 * static_cast<double>(bytes) / bytes_per_second));
    }
    return time;
  }

  /// The time until `rank` has what it receives.
  std::chrono::nanoseconds duration(std::int64_t bytes, int rank) const {
    const auto usual = duration(bytes);
    if (rank != slow_rank) return usual;
    return std::chrono::nanoseconds(
        static_cast<std::int64_t>(slow_by * static_cast<double>(usual.count())));
  }
};

}  // namespace moegrad
