// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

namespace moegrad {

/// Random delays that bring out what depends on timing: each rank joins each collective late, and
/// begins its part of it late, each time by up to `maximum`. No thread is held up by them, so one
/// queue's delay does not delay another.
struct Jitter {
  std::chrono::nanoseconds maximum{0};
  std::uint64_t seed = 0;

  /// Draw number `index` of one rank in one place, such as a queue of a group: a function of its
  /// arguments and the seed alone, uniform in [0, maximum).
  std::chrono::nanoseconds delay(int rank, std::string_view place, std::int64_t index) const;
};

}  // namespace moegrad
