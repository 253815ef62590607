// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/launch_options.h"

#include <cmath>
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
  check<ValueError>(1 <= options.threads_per_rank, launch,
                    ": threads_per_rank must be at least 1, got ", options.threads_per_rank);
  if (options.kernels) check_available(launch, *options.kernels);
  const auto check_rate = [&](std::string_view what, auto latency, double bytes_per_second) {
    check<ValueError>(latency.count() >= 0 && latency <= kDay, launch, ": the latency of ", what,
                      " must be in [0, 24 h], got ", latency.count(), " ns");
    check<ValueError>(bytes_per_second == 0 || bytes_per_second >= 1, launch,
                      ": bytes_per_second of ", what, " must be 0 or at least 1, got ",
                      bytes_per_second);
  };
  const auto& link = options.link;
  check_rate("link", link.latency, link.bytes_per_second);
  check_rate("link.between_hosts", link.between_hosts.latency, link.between_hosts.bytes_per_second);
  check<ValueError>(link.slow_by > 0 && std::isfinite(link.slow_by), launch,
                    ": slow_by of link must be positive, got ", link.slow_by);
  check<ValueError>(link.ranks_per_host >= 0, launch,
                    ": ranks_per_host of link must be at least 0, got ", link.ranks_per_host);
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
