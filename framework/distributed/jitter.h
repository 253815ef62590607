// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

namespace moegrad {

/// Random delays that expose code which depends on timing. Each rank joins each collective late,
/// and begins its part of it late, each time by up to `maximum`. The delays block no thread, so the
/// delay of one queue does not delay another.
struct Jitter {
  std::chrono::nanoseconds maximum{0};
  std::uint64_t seed = 0;

  /// Delay number `index` of one rank in one stream of delays, such as a queue of a group. It
  /// depends on its arguments and the seed only, and is uniform in [0, maximum).
  std::chrono::nanoseconds delay(int rank, std::string_view stream, std::int64_t index) const;
};

}  // namespace moegrad
