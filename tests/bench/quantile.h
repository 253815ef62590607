// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace moegrad::bench {

/// Value that the share `q` of the values stays below.
inline double quantile(std::vector<double> values, double q) {
  const auto at =
      values.begin() + static_cast<std::ptrdiff_t>(q * static_cast<double>(values.size() - 1));
  std::ranges::nth_element(values, at);
  return *at;
}

/// If two values are in the middle, the smaller one.
inline double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

}  // namespace moegrad::bench
