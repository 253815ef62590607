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

  std::chrono::nanoseconds duration(std::int64_t bytes) const {
    auto time = latency;
    if (bytes_per_second > 0) {
      time += std::chrono::nanoseconds(
          static_cast<std::int64_t>(1e9 * static_cast<double>(bytes) / bytes_per_second));
    }
    return time;
  }
};

}  // namespace moegrad
