// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/report/axis.h"

namespace moegrad::tools {

/// The area in which a chart draws its values, in the units of the SVG.
struct PlotArea {
  double left = 0;
  double top = 0;
  double right = 0;
  double bottom = 0;
  AxisRange steps = {};
  AxisRange values = {};

  double x(double step) const { return left + steps.fraction(step) * (right - left); }
  double y(double value) const { return bottom - values.fraction(value) * (bottom - top); }
  /// "x,y"
  std::string point(double step, double value) const;
};

std::string svg_begin(double width, double height);
/// A file of its own: the charts, each of this width and height, one below the other.
std::string svg_file(const std::vector<std::string>& charts, double width, double height);
/// `anchor`: start, middle or end.
std::string svg_text(double x, double y, const std::string& anchor, const std::string& text);
/// A line across the area, with its number at the left.
std::string value_tick(const PlotArea& area, const Tick& tick);
/// The lower side of the frame, with its numbers and the word "step".
std::string step_axis(const PlotArea& area);

}  // namespace moegrad::tools
