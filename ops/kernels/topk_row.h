// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

namespace moegrad::kernels {

/// best[0, k) = the positions of the k largest of row[0, n), largest first, equal ones by rising
/// position. 1 <= k <= n. Keeps the best so far in order: a later position moves before those that
/// it strictly exceeds.
template <class T>
void topk_row(const T* row, std::int64_t* best, std::int64_t n, std::int64_t k) {
  for (std::int64_t i = 0; i < n; ++i) {
    auto j = std::min(i, k);
    if (j == k && !(row[i] > row[best[k - 1]])) continue;
    if (j == k) --j;
    for (; j > 0 && row[i] > row[best[j - 1]]; --j) best[j] = best[j - 1];
    best[j] = i;
  }
}

}  // namespace moegrad::kernels
