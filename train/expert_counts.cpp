// SPDX-License-Identifier: Apache-2.0
#include "train/expert_counts.h"

#include <algorithm>
#include <functional>

namespace moegrad::training {

void add_counts(ExpertCounts& counts, const ExpertCounts& more) {
  if (counts.empty()) counts.resize(more.size());
  for (std::size_t layer = 0; layer < counts.size(); ++layer) {
    counts[layer].resize(more[layer].size());
    std::ranges::transform(counts[layer], more[layer], counts[layer].begin(), std::plus<>());
  }
}

}  // namespace moegrad::training
