// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace moegrad::tools {

/// A range of numbers that is drawn along an axis; never empty.
struct AxisRange {
  double low = 0;
  double high = 1;

  /// 0 at `low`, 1 at `high`.
  double fraction(double value) const { return (value - low) / (high - low); }
};

/// [low, high], widened if a curve is flat or has one point. `margin`: a part of the length that is
/// added at both ends.
AxisRange axis_range(double low, double high, double margin = 0);

struct Tick {
  double value = 0;
  std::string label = {};
};

/// About `count` multiples of 1, 2 or 5 times a power of ten within the range; with `integers`,
/// only integers. The labels of one axis are distinct: 0.5, 12, 20k, 1.5M, 2e-05.
std::vector<Tick> ticks(const AxisRange& range, int count, bool integers = false);

}  // namespace moegrad::tools
