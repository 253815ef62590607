// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/excuses.h"

#include <algorithm>
#include <iomanip>
#include <iterator>
#include <sstream>
#include <utility>

namespace moegrad {
namespace {

std::string in_seconds(CollectiveClock::duration time) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << std::chrono::duration<double>(time).count() << " s";
  return text.str();
}

}  // namespace

Excuses::Handle Excuses::begin(const void* group, std::string what) {
  const bool within = std::ranges::any_of(
      excuses_, [&](const auto& outer) { return outer.group == group && !outer.what.empty(); });
  const auto now = CollectiveClock::now();
  excuses_.push_back({.group = group,
                      .what = within ? "" : std::move(what),
                      .since = now,
                      .warns_at = now + deadline_});
  return std::prev(excuses_.end());
}

std::string Excuses::end(Handle excuse) {
  std::string warning;
  const auto now = CollectiveClock::now();
  const auto time = now - excuse->since;
  if (!excuse->what.empty() && time >= deadline_) {
    warning = "rank " + std::to_string(rank_) + ": " + excuse->what + " took " + in_seconds(time);
  }
  const Excuse own = *excuse;
  excuses_.erase(excuse);
  const bool within = std::ranges::any_of(excuses_, [&](const Excuse& outer) {
    return outer.group == own.group && outer.since <= own.since;
  });
  if (within) return warning;
  ended_.push_back({.group = own.group, .since = own.since, .until = now});
  if (ended_.size() > kRemembered) join_first_to_next();
  return warning;
}

// To the next of the same group; every group has its own. Two threads' excuses may overlap.
void Excuses::join_first_to_next() {
  for (auto first = ended_.begin(); first != ended_.end(); ++first) {
    const auto next = std::find_if(std::next(first), ended_.end(),
                                   [&](const Ended& later) { return later.group == first->group; });
    if (next == ended_.end()) continue;
    const auto alone = std::min(first->until, next->since) - first->since;
    next->since -= std::max(alone, CollectiveClock::duration{0});
    ended_.erase(first);
    return;
  }
}

CollectiveClock::duration Excuses::within(CollectiveClock::duration time, const void* group,
                                          const void* world) const {
  const auto now = CollectiveClock::now();
  std::vector<Ended> spans;
  for (const auto& ended : ended_) {
    if (ended.group == world || ended.group == group) spans.push_back(ended);
  }
  for (const auto& excuse : excuses_) {
    if (excuse.group == world || excuse.group == group) spans.push_back({group, excuse.since, now});
  }
  std::ranges::sort(spans, {}, &Ended::since);
  CollectiveClock::duration sum{0};
  auto counted_until = now - time;
  for (const auto& span : spans) {
    const auto begin = std::max(span.since, counted_until);
    if (span.until <= begin) continue;
    sum += span.until - begin;
    counted_until = span.until;
  }
  return sum;
}

void Excuses::warn(CollectiveClock::time_point now, std::vector<std::string>& warnings) {
  for (auto& excuse : excuses_) {
    if (excuse.what.empty() || now < excuse.warns_at) continue;
    excuse.warns_at = now + deadline_;
    warnings.push_back("rank " + std::to_string(rank_) + ": " + excuse.what + " has taken " +
                       in_seconds(now - excuse.since) + " and goes on");
  }
}

}  // namespace moegrad
