// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/report/axis.h"
#include "tools/report/step_bins.h"

namespace moegrad::tools {

struct ChartLine {
  std::string name = {};
  const Curve* curve = nullptr;
};

/// A dashed line across the chart.
struct ReferenceLine {
  double value = 0;
  std::string name = {};
};

struct ChartOptions {
  double width = 460;
  double height = 230;
  std::string unit = {};   // of the values, shown beside the axis
  bool from_zero = false;  // whether the axis of the values includes 0
  /// It is left out if it is so far above the curves that these would look flat.
  std::optional<ReferenceLine> reference = {};
};

/// Curves over steps as SVG: the mean of each bin as a line, the range of its values as a band, and
/// a gap for a bin without values. `steps`: the axis, which is the same for all charts of a page.
std::string curve_chart(const std::vector<ChartLine>& lines, const AxisRange& steps,
                        const ChartOptions& options);

}  // namespace moegrad::tools
