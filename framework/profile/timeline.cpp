// SPDX-License-Identifier: Apache-2.0
#include "framework/profile/timeline.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "framework/profile/overlap.h"

namespace moegrad {

double seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

double median(std::vector<double> values) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  if (values.size() % 2 == 1) return *middle;
  return std::midpoint(*std::max_element(values.begin(), middle), *middle);
}

TimelineFigures timeline_figures(const std::vector<RankTimeline>& ranks) {
  TimelineFigures sums;
  for (const auto& rank : ranks) {
    const auto steps = static_cast<double>(rank.step_begins.size() - 1);
    const auto share = 1 / (steps * static_cast<double>(ranks.size()));
    sums.compute += share * seconds(length(compute_intervals(rank.spans)));
    const auto lanes = overlap_per_lane(rank.spans);
    const auto add = [&](Lane lane, double& total, double& exposed) {
      const auto& overlap = lanes[static_cast<std::size_t>(lane)];
      total += share * seconds(overlap.total);
      exposed += share * seconds(overlap.exposed());
    };
    add(Lane::kGather, sums.gather, sums.exposed_gather);
    add(Lane::kReduce, sums.reduce, sums.exposed_reduce);
    add(Lane::kCollective, sums.other, sums.exposed_other);
    for (const auto& span : rank.spans) {
      const auto bytes = share * static_cast<double>(span.bytes);
      if (span.lane == Lane::kGather) sums.gathered_bytes += bytes;
      if (span.lane == Lane::kReduce) sums.reduced_bytes += bytes;
      if (span.lane == Lane::kCollective) sums.other_bytes += bytes;
    }
    for (std::size_t tag = 0; tag < kMemoryTags; ++tag) {
      sums.peak_bytes[tag] = std::max(sums.peak_bytes[tag], rank.peak_bytes[tag]);
    }
    sums.peak_total = std::max(sums.peak_total, rank.peak_total);
  }
  std::vector<double> steps;
  const auto& begins = ranks[0].step_begins;
  for (std::size_t i = 1; i < begins.size(); ++i)
    steps.push_back(seconds(begins[i] - begins[i - 1]));
  sums.step = median(std::move(steps));
  return sums;
}

}  // namespace moegrad
