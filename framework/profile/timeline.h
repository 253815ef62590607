// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <vector>

#include "framework/runtime/arena.h"
#include "framework/runtime/span.h"

namespace moegrad {

/// What one rank recorded. Nothing is dropped, however long the run.
struct RankTimeline {
  std::vector<Span> spans = {};
  std::vector<SpanClock::time_point> step_begins = {};    // and the end of the last step
  std::array<std::int64_t, kMemoryTags> peak_bytes = {};  // of each tag by itself
  std::int64_t peak_total = 0;
};

/// Figures per rank and step: means over all ranks and steps. Times are in seconds.
struct TimelineFigures {
  double step = 0;                           // median of rank 0
  double compute = 0;                        // compute and optimizer lanes, minus waits
  double gather = 0, reduce = 0, other = 0;  // collectives, by lane
  double exposed_gather = 0, exposed_reduce = 0, exposed_other = 0;  // not under compute
  double gathered_bytes = 0, reduced_bytes = 0, other_bytes = 0;     // Span::bytes
  std::array<std::int64_t, kMemoryTags> peak_bytes = {};             // most of any rank
  std::int64_t peak_total = 0;

  double communication() const { return gather + reduce + other; }
  double exposed() const { return exposed_gather + exposed_reduce + exposed_other; }
};

/// The time in seconds.
double seconds(std::chrono::nanoseconds time);
/// The median. For an even number of values, the mean of the middle two; for none, NaN.
double median(std::vector<double> values);

/// The figures of a run of at least one step. `spans` must contain everything that happened in the
/// steps, recorded at level 1 or 2.
TimelineFigures timeline_figures(const std::vector<RankTimeline>& ranks);

}  // namespace moegrad
