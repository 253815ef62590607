// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/slow_rank_watch.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "framework/distributed/collectives.h"

namespace moegrad {

SlowRankWatch::SlowRankWatch(RankContext& context, std::shared_ptr<ProcessGroup> group,
                             bool compares_compute)
    : context_(context),
      group_(std::move(group)),
      compares_compute_(compares_compute),
      before_(context.work()->read()),
      finder_(group_ == nullptr ? 1 : group_->size()) {}

std::vector<SlowRank> SlowRankWatch::close_window() {
  const auto now = context_.work()->read();
  const auto before = std::exchange(before_, now);
  if (group_ == nullptr) return {};
  std::vector<std::int64_t> own, all(kWorkClasses * static_cast<std::size_t>(group_->size()));
  for (std::size_t what = 0; what < kWorkClasses; ++what) {
    own.push_back((now[what] - before[what]).count());
  }
  all_gather(*group_, own, std::span(all), {.label = "work of the ranks"});
  std::vector<WorkTimes> window(all.size() / kWorkClasses);
  for (std::size_t i = 0; i < all.size(); ++i) {
    window[i / kWorkClasses][i % kWorkClasses] = std::chrono::nanoseconds(all[i]);
  }
  if (!compares_compute_) {
    constexpr auto kCompute = static_cast<std::size_t>(WorkClass::kCompute);
    std::chrono::nanoseconds most{0};
    for (const auto& times : window) most = std::max(most, times[kCompute]);
    for (auto& times : window) times[kCompute] = most;
  }
  auto slow = finder_.add(window);
  for (auto& each : slow) each.rank = group_->ranks()[static_cast<std::size_t>(each.rank)];
  return slow;
}

}  // namespace moegrad
