// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/threads/excuses.h"

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

Excuses::Handle Excuses::begin(const GroupState& group, std::string what) {
  const bool within = std::ranges::any_of(
      excuses_, [&](const auto& outer) { return outer.group == &group && !outer.what.empty(); });
  const auto now = CollectiveClock::now();
  excuses_.push_back({.group = &group,
                      .what = within ? "" : std::move(what),
                      .since = now,
                      .warns_at = now + deadline_});
  return std::prev(excuses_.end());
}

std::string Excuses::end(Handle excuse) {
  std::string warning;
  const auto time = CollectiveClock::now() - excuse->since;
  if (!excuse->what.empty() && time >= deadline_) {
    warning = "rank " + std::to_string(rank_) + ": " + excuse->what + " took " + in_seconds(time);
  }
  excuses_.erase(excuse);
  return warning;
}

bool Excuses::count_in(const GroupState& group, const GroupState& world) const {
  return std::ranges::any_of(excuses_, [&](const Excuse& excuse) {
    return excuse.group == &world || excuse.group == &group;
  });
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
