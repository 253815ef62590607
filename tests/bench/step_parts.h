// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/distributed/traffic.h"
#include "framework/profile/overlap.h"

namespace moegrad::bench {

/// What a rank spent a step on, in seconds, by name.
using StepParts = std::vector<std::pair<std::string, double>>;

inline bool contains_any(std::string_view name, std::span<const std::string_view> words) {
  for (const auto word : words) {
    if (name.find(word) != std::string_view::npos) return true;
  }
  return false;
}

/// The parts of a step that took `total` seconds: `spans` of level 2, less the waits in them; what
/// was waited for each axis between two readings of ProcessGroup::traffic(), whose groups have
/// their names in `axes`; and what is left.
inline StepParts step_parts(const std::vector<Span>& spans, double total,
                            const std::map<std::string, std::string>& axes,
                            const std::map<std::string, TrafficFigures>& before,
                            const std::map<std::string, TrafficFigures>& after) {
  constexpr std::array<std::string_view, 3> kProducts = {"matmul", "linear", "npu_gmm"};
  enum Part : std::uint8_t { kWaits, kProduct, kAttention, kOptimizer, kOther, kParts };
  std::array<std::vector<Interval>, kParts> intervals;
  for (const auto& span : spans) {
    const Interval interval = {span.begin, span.end};
    if (span.kind == SpanKind::kWait) intervals[kWaits].push_back(interval);
    if (span.lane == Lane::kOptimizer) intervals[kOptimizer].push_back(interval);
    if (span.kind != SpanKind::kFunction) continue;
    const bool is_attention = span.name.find("attention") != std::string::npos;
    const auto part = contains_any(span.name, kProducts) ? kProduct
                      : is_attention                     ? kAttention
                                                         : kOther;
    intervals[part].push_back(interval);
  }
  StepParts parts;
  auto taken = unite(intervals[kWaits]);
  auto left = total;
  const auto add = [&](const std::string& name, double seconds) {
    parts.emplace_back(name, seconds);
    left -= seconds;
  };
  // A Function may run others, as recomputation does: each counts as what it is.
  for (const auto& [part, name] : {std::pair(kProduct, "products"),
                                   {kAttention, "attention"},
                                   {kOptimizer, "optimizer"},
                                   {kOther, "other ops"}}) {
    const auto own = subtract(unite(intervals[part]), taken);
    add(name, std::chrono::duration<double>(length(own)).count());
    taken.insert(taken.end(), own.begin(), own.end());
    taken = unite(taken);
  }
  for (const auto& [group, figures] : after) {
    const auto axis = axes.find(group);
    const auto waited = figures.wait - before.at(group).wait;
    add("waiting for " + (axis != axes.end() ? axis->second : group),
        static_cast<double>(waited) * 1e-9);
  }
  parts.emplace_back("between ops", left);
  return parts;
}

}  // namespace moegrad::bench
