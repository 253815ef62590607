// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/launch_options.h"

#include <string>

#include "framework/runtime/error.h"
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

void check_launch_options(std::string_view launch, const LaunchOptions& options) {
  // Within these bounds no time that is computed from them overflows.
  constexpr std::chrono::hours kDay(24);
  check<ValueError>(options.deadline.count() > 0 && options.deadline <= kDay, launch,
                    ": deadline must be in (0, 24 h], got ", options.deadline.count(), " ms");
  const auto exit_after = options.exit_after.value_or(options.deadline);
  check<ValueError>(exit_after.count() > 0 && exit_after <= kDay, launch,
                    ": exit_after must be in (0, 24 h], got ", exit_after.count(), " ms");
  const auto jitter = options.jitter.maximum;
  check<ValueError>(jitter.count() >= 0 && jitter <= kDay, launch,
                    ": jitter must be in [0, 24 h], got ", jitter.count(), " ns");
  constexpr std::size_t kLine = 64, kMost = std::size_t{1} << 30;
  check<ValueError>(
      0 < options.piece_bytes && options.piece_bytes <= kMost && options.piece_bytes % kLine == 0,
      launch, ": piece_bytes must be a multiple of ", kLine, " in (0, ", kMost, "], got ",
      options.piece_bytes);
  for (const auto& [queue, priority] : options.priorities) {
    check<ValueError>(0 <= priority && priority <= 7, launch, ": the priority of queue ",
                      to_string(queue), " must be in [0, 7], got ", priority);
  }
}

}  // namespace moegrad
