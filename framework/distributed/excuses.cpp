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
  std::erase_if(ended_, [&](const Ended& inner) {
    return inner.group == excuse->group && inner.since >= excuse->since;
  });
  if (ended_.size() == kRemembered) ended_.erase(ended_.begin());
  ended_.push_back({.group = excuse->group, .since = excuse->since, .until = now});
  excuses_.erase(excuse);
  return warning;
}

bool Excuses::count_in(const void* group, const void* world) const {
  return std::ranges::any_of(excuses_, [&](const Excuse& excuse) {
    return excuse.group == world || excuse.group == group;
  });
}

CollectiveClock::duration Excuses::within(CollectiveClock::duration time, const void* group,
                                          const void* world) const {
  const auto now = CollectiveClock::now();
  std::vector<std::pair<CollectiveClock::time_point, CollectiveClock::time_point>> spans;
  for (const auto& ended : ended_) {
    if (ended.group == world || ended.group == group) spans.emplace_back(ended.since, ended.until);
  }
  for (const auto& excuse : excuses_) {
    if (excuse.group == world || excuse.group == group) spans.emplace_back(excuse.since, now);
  }
  std::ranges::sort(spans);
  CollectiveClock::duration sum{0};
  auto counted_until = now - time;
  for (const auto& [since, until] : spans) {
    const auto begin = std::max(since, counted_until);
    if (until <= begin) continue;
    sum += until - begin;
    counted_until = until;
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
