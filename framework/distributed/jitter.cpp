// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/jitter.h"

#include <string>

#include "framework/runtime/random.h"

namespace moegrad {

std::chrono::nanoseconds Jitter::delay(int rank, std::string_view stream,
                                       std::int64_t index) const {
  if (maximum.count() <= 0) return std::chrono::nanoseconds(0);
  const Random random(seed,
                      "jitter of rank " + std::to_string(rank) + " in " + std::string(stream));
  return std::chrono::nanoseconds(
      random.integer(static_cast<std::uint64_t>(index), maximum.count()));
}

}  // namespace moegrad
