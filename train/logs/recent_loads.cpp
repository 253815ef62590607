// SPDX-License-Identifier: Apache-2.0
#include "train/logs/recent_loads.h"

#include <algorithm>
#include <functional>
#include <iomanip>
#include <numeric>
#include <sstream>
#include <utility>

namespace moegrad::training {

void RecentLoads::add(std::vector<std::vector<std::int64_t>> tokens_per_expert) {
  counts_.push_back(std::move(tokens_per_expert));
  if (counts_.size() > kSteps) counts_.pop_front();
}

std::string RecentLoads::text() const {
  if (counts_.empty()) return {};
  std::ostringstream out;
  out << std::fixed << std::setprecision(2);
  for (std::size_t layer = 0; layer < counts_.front().size(); ++layer) {
    std::vector<std::int64_t> sum(counts_.front()[layer].size());
    for (const auto& step : counts_) {
      std::ranges::transform(sum, step[layer], sum.begin(), std::plus<>());
    }
    const auto total = std::accumulate(sum.begin(), sum.end(), std::int64_t{0});
    const double mean = static_cast<double>(total) / static_cast<double>(sum.size());
    const auto [least, most] = std::ranges::minmax(sum);
    out << (layer > 0 ? " " : "") << static_cast<double>(least) / mean << '-'
        << static_cast<double>(most) / mean;
  }
  return out.str();
}

}  // namespace moegrad::training
