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
  ended_.push_back({.group = excuse->group, .since = excuse->since, .until = now, .excused = time});
  if (ended_.size() > kRemembered) add_first_to_next();
  excuses_.erase(excuse);
  return warning;
}

// To the next of the same group; every group has its own.
void Excuses::add_first_to_next() {
  for (auto first = ended_.begin(); first != ended_.end(); ++first) {
    const auto next = std::find_if(std::next(first), ended_.end(),
                                   [&](const Ended& later) { return later.group == first->group; });
    if (next == ended_.end()) continue;
    next->since = std::min(first->since, next->since);
    next->excused += first->excused;
    ended_.erase(first);
    return;
  }
}

bool Excuses::count_in(const void* group, const void* world) const {
  return std::ranges::any_of(excuses_, [&](const Excuse& excuse) {
    return excuse.group == world || excuse.group == group;
  });
}

CollectiveClock::duration Excuses::within(CollectiveClock::duration time, const void* group,
                                          const void* world) const {
  const auto now = CollectiveClock::now();
  std::vector<Ended> spans;
  for (const auto& ended : ended_) {
    if (ended.group == world || ended.group == group) spans.push_back(ended);
  }
  for (const auto& [own, what, since, warns_at] : excuses_) {
    if (own == world || own == group) spans.push_back({own, since, now, now - since});
  }
  std::ranges::sort(spans, {}, &Ended::since);
  CollectiveClock::duration sum{0};
  auto counted_until = now - time;
  for (const auto& span : spans) {
    const auto begin = std::max(span.since, counted_until);
    if (span.until <= begin) continue;
    sum += std::min(span.until - begin, span.excused);
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
