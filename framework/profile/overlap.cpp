// SPDX-License-Identifier: Apache-2.0
#include "framework/profile/overlap.h"

#include <algorithm>
#include <utility>

namespace moegrad {

Intervals unite(std::vector<Interval> intervals) {
  std::ranges::sort(intervals, {}, &Interval::begin);
  Intervals united;
  for (const auto& interval : intervals) {
    if (interval.end <= interval.begin) continue;
    if (!united.empty() && interval.begin <= united.back().end) {
      united.back().end = std::max(united.back().end, interval.end);
    } else {
      united.push_back(interval);
    }
  }
  return united;
}

Intervals subtract(const Intervals& a, const Intervals& b) {
  Intervals rest;
  auto next = b.begin();
  for (auto interval : a) {
    while (next != b.end() && next->end <= interval.begin) ++next;
    // The last cut may reach into the next interval of `a`, so `next` stays on it.
    for (auto cut = next; cut != b.end() && cut->begin < interval.end; ++cut) {
      if (interval.begin < cut->begin) rest.push_back({interval.begin, cut->begin});
      interval.begin = cut->end;
    }
    if (interval.begin < interval.end) rest.push_back(interval);
  }
  return rest;
}

std::chrono::nanoseconds length(const Intervals& intervals) {
  std::chrono::nanoseconds sum{0};
  for (const auto& [begin, end] : intervals) sum += end - begin;
  return sum;
}

Intervals compute_intervals(const std::vector<Span>& spans) {
  std::vector<Interval> work, waits;
  for (const auto& span : spans) {
    if (span.kind == SpanKind::kWait) {
      waits.push_back({span.begin, span.end});
    } else if (span.lane == Lane::kCompute || span.lane == Lane::kOptimizer) {
      work.push_back({span.begin, span.end});
    }
  }
  return subtract(unite(std::move(work)), unite(std::move(waits)));
}

double Overlap::hidden_share() const {
  return total.count() == 0
             ? 1.0
             : static_cast<double>(hidden.count()) / static_cast<double>(total.count());
}

Overlap& Overlap::operator+=(const Overlap& other) {
  total += other.total;
  hidden += other.hidden;
  return *this;
}

Overlap overlap_of(const Span& collective, const Intervals& compute) {
  const Intervals whole = unite({{collective.begin, collective.end}});
  return {.total = length(whole), .hidden = length(whole) - length(subtract(whole, compute))};
}

std::array<Overlap, kLanes> overlap_per_lane(const std::vector<Span>& spans) {
  const auto compute = compute_intervals(spans);
  std::array<Overlap, kLanes> lanes{};
  for (const auto& span : spans) {
    if (span.kind != SpanKind::kCollective) continue;
    lanes[static_cast<std::size_t>(span.lane)] += overlap_of(span, compute);
  }
  return lanes;
}

}  // namespace moegrad
