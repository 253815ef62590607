// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <vector>

#include "framework/profile/span.h"
#include "framework/tensor/arena.h"

namespace moegrad {

/// What one rank recorded; nothing of it is dropped, however long the run.
struct RankTimeline {
  std::vector<Span> spans = {};
  std::vector<SpanClock::time_point> step_begins = {};    // and the end of the last step
  std::array<std::int64_t, kMemoryTags> peak_bytes = {};  // of each tag by itself
  std::int64_t peak_total = 0;
};

/// Per rank and step, means over all ranks and steps; times in seconds.
struct TimelineFigures {
  double step = 0;                           // median of rank 0
  double compute = 0;                        // of the compute and optimizer lanes, waits left out
  double gather = 0, reduce = 0, other = 0;  // of collectives
  double exposed_gather = 0, exposed_reduce = 0, exposed_other = 0;  // not under compute
  double gathered_bytes = 0, reduced_bytes = 0, other_bytes = 0;     // Span::bytes
  std::array<std::int64_t, kMemoryTags> peak_bytes = {};             // most of any rank
  std::int64_t peak_total = 0;

  double communication() const { return gather + reduce + other; }
  double exposed() const { return exposed_gather + exposed_reduce + exposed_other; }
};

/// As a number.
double seconds(std::chrono::nanoseconds time);
/// The middle one in order; of an even number, the mean of the two in the middle; NaN of none.
double median(std::vector<double> values);

/// Of runs of one step or more. `spans` hold all that happened in the steps, at level 1 or 2.
TimelineFigures timeline_figures(const std::vector<RankTimeline>& ranks);

}  // namespace moegrad
