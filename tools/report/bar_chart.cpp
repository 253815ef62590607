// SPDX-License-Identifier: Apache-2.0
#include "tools/report/bar_chart.h"

#include <algorithm>

#include "tools/report/markup.h"
#include "tools/report/svg.h"

namespace moegrad::tools {
namespace {

// A value that is not a valid length, as in a damaged file, is drawn with length zero.
double drawn(double part) { return part > 0 && part < 1e150 ? part : 0; }

double length(const Bar& bar) {
  double sum = 0;
  for (const auto part : bar.parts) sum += drawn(part);
  return sum;
}

}  // namespace

std::string bar_chart(const std::vector<Bar>& bars) {
  constexpr double kWidth = 860, kRow = 26, kLeft = 150, kLongest = 400;
  double longest = 0;
  for (const auto& bar : bars) longest = std::max(longest, length(bar));
  std::string svg = svg_begin(kWidth, kRow * static_cast<double>(bars.size()) + 4);
  double y = 2;
  for (const auto& bar : bars) {
    double x = kLeft;
    svg += svg_text(kLeft - 8, y + 16, "end", bar.label);
    for (std::size_t i = 0; i < bar.parts.size(); ++i) {
      const double width = longest > 0 ? kLongest * drawn(bar.parts[i]) / longest : 0;
      svg += concat("<rect class=\"bar", std::to_string(i), "\" x=\"", fixed(x, 1), "\" y=\"",
                    fixed(y + 3, 1), "\" width=\"", fixed(width, 1), "\" height=\"",
                    fixed(kRow - 8, 1), "\"/>\n");
      x += width;
    }
    svg += svg_text(x + 8, y + 16, "start", bar.note);
    y += kRow;
  }
  return svg + "</svg>\n";
}

}  // namespace moegrad::tools
