// SPDX-License-Identifier: Apache-2.0
#include "tools/report/svg.h"

#include "tools/report/chart_style.h"
#include "tools/report/markup.h"

namespace moegrad::tools {

std::string PlotArea::point(double step, double value) const {
  return concat(fixed(x(step), 1), ",", fixed(y(value), 1));
}

std::string svg_begin(double width, double height) {
  const auto w = fixed(width, 0), h = fixed(height, 0);
  return concat("<svg viewBox=\"0 0 ", w, " ", h, "\" width=\"", w, "\" height=\"", h,
                "\" role=\"img\">\n");
}

std::string svg_file(const std::vector<std::string>& charts, double width, double height) {
  const auto w = fixed(width, 0), h = fixed(height * static_cast<double>(charts.size()), 0);
  auto file =
      concat("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", w, " ", h, "\" width=\"",
             w, "\" height=\"", h, "\" font-family=\"sans-serif\">\n<style>", kChartStyle,
             "</style>\n", "<rect width=\"100%\" height=\"100%\" style=\"fill: var(--page)\"/>\n");
  for (std::size_t i = 0; i < charts.size(); ++i) {
    const auto y = fixed(height * static_cast<double>(i), 0);
    file += concat("<g transform=\"translate(0,", y, ")\">\n", charts[i], "</g>\n");
  }
  return file + "</svg>\n";
}

std::string svg_text(double x, double y, const std::string& anchor, const std::string& text) {
  return concat("<text x=\"", fixed(x, 1), "\" y=\"", fixed(y, 1), "\" text-anchor=\"", anchor,
                "\">", escape(text), "</text>\n");
}

std::string value_tick(const PlotArea& area, const Tick& tick) {
  const double y = area.y(tick.value);
  return concat("<path class=\"grid\" d=\"M", fixed(area.left, 1), ",", fixed(y, 1), "H",
                fixed(area.right, 1), "\"/>\n", svg_text(area.left - 6, y + 4, "end", tick.label));
}

std::string step_axis(const PlotArea& area) {
  constexpr double kUnitsPerTick = 85;
  const auto count = static_cast<int>((area.right - area.left) / kUnitsPerTick) + 1;
  std::string lines =
      concat("M", fixed(area.left, 1), ",", fixed(area.bottom, 1), "H", fixed(area.right, 1));
  std::string labels;
  for (const auto& tick : ticks(area.steps, count, /*integers=*/true)) {
    lines += concat("M", area.point(tick.value, area.values.low), "v4");
    labels += svg_text(area.x(tick.value), area.bottom + 16, "middle", tick.label);
  }
  return concat("<path class=\"axis\" d=\"", lines, "\"/>\n", labels,
                svg_text((area.left + area.right) / 2, area.bottom + 31, "middle", "step"));
}

}  // namespace moegrad::tools
