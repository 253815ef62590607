// SPDX-License-Identifier: Apache-2.0
#include "train/logs/recent_loads.h"

#include <algorithm>
#include <iomanip>
#include <numeric>
#include <sstream>
#include <utility>

namespace moegrad::training {

void RecentLoads::add(ExpertCounts tokens_per_expert) {
  counts_.push_back(std::move(tokens_per_expert));
  if (counts_.size() > kSteps) counts_.pop_front();
}

std::string RecentLoads::text() const {
  if (counts_.empty()) return {};
  std::ostringstream out;
  out << std::fixed << std::setprecision(2);
  ExpertCounts sums;
  for (const auto& step : counts_) add_counts(sums, step);
  for (std::size_t layer = 0; layer < sums.size(); ++layer) {
    const auto& sum = sums[layer];
    const auto total = std::accumulate(sum.begin(), sum.end(), std::int64_t{0});
    const double mean = static_cast<double>(total) / static_cast<double>(sum.size());
    const auto [least, most] = std::ranges::minmax(sum);
    out << (layer > 0 ? " " : "") << static_cast<double>(least) / mean << '-'
        << static_cast<double>(most) / mean;
  }
  return out.str();
}

}  // namespace moegrad::training
