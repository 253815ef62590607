// SPDX-License-Identifier: Apache-2.0
#include "tools/report/step_bins.h"

#include <algorithm>
#include <cmath>

namespace moegrad::tools {
namespace {

// Larger values are left out, so that sums and ranges of drawn values do not overflow.
constexpr double kMost = 1e150;

bool is_drawn(double value) { return std::abs(value) <= kMost; }

}  // namespace

void CurveBin::add(std::int64_t step, double value) {
  if (!is_drawn(value)) return;
  ++count;
  low = std::min(low, value);
  high = std::max(high, value);
  sum += value;
  step_sum += static_cast<double>(step);
}

void CurveBin::merge(const CurveBin& other) {
  count += other.count;
  low = std::min(low, other.low);
  high = std::max(high, other.high);
  sum += other.sum;
  step_sum += other.step_sum;
}

void Curve::add(std::int64_t step, double value) {
  bins_.at(step).add(step, value);
  last_ = value;
  if (!is_drawn(value)) ++missing_;
}

std::vector<CurveBin> Curve::bins() const {
  std::vector<CurveBin> bins;
  for (const auto& [key, bin] : bins_.bins()) bins.push_back(bin);
  return bins;
}

bool Curve::has_values() const {
  return std::ranges::any_of(bins(), [](const CurveBin& bin) { return bin.count > 0; });
}

}  // namespace moegrad::tools
