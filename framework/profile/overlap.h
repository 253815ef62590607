// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <vector>

#include "framework/runtime/span.h"

namespace moegrad {

/// The time from `begin` up to `end`.
struct Interval {
  SpanClock::time_point begin = {};
  SpanClock::time_point end = {};
  friend bool operator==(const Interval&, const Interval&) = default;
};
/// Intervals in ascending order, disjoint, none empty.
using Intervals = std::vector<Interval>;

/// The time in any of `intervals`, which may be in any order and overlap.
Intervals unite(std::vector<Interval> intervals);
/// The time in `a` that is not in `b`.
Intervals subtract(const Intervals& a, const Intervals& b);
/// The sum of the intervals' lengths.
std::chrono::nanoseconds length(const Intervals& intervals);

/// When a rank computed: the spans on its compute and optimizer lanes, minus its waits.
Intervals compute_intervals(const std::vector<Span>& spans);

/// How much of a communication overlaps with compute of the same rank.
struct Overlap {
  std::chrono::nanoseconds total{0};
  std::chrono::nanoseconds hidden{0};

  std::chrono::nanoseconds exposed() const { return total - hidden; }
  /// hidden / total; 1 where there is nothing to hide.
  double hidden_share() const;
  Overlap& operator+=(const Overlap& other);
};

/// total: the length of the collective's span; hidden: how much of the span overlaps with
/// `compute`, the compute_intervals() of the same rank.
Overlap overlap_of(const Span& collective, const Intervals& compute);

/// The sum of overlap_of() over the collectives of each lane of one rank. Two collectives at the
/// same time count twice.
std::array<Overlap, kLanes> overlap_per_lane(const std::vector<Span>& spans);

}  // namespace moegrad
