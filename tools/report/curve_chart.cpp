// SPDX-License-Identifier: Apache-2.0
#include "tools/report/curve_chart.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "tools/report/chart_style.h"
#include "tools/report/markup.h"
#include "tools/report/svg.h"

namespace moegrad::tools {
namespace {

// If there are more points, they are not marked one by one.
constexpr std::size_t kMostDots = 40;

AxisRange value_range(const std::vector<ChartLine>& lines, const ChartOptions& options) {
  const bool from_zero = options.from_zero;
  double low = from_zero ? 0 : std::numeric_limits<double>::infinity();
  double high = from_zero ? 0 : -std::numeric_limits<double>::infinity();
  for (const auto& line : lines) {
    for (const auto& bin : line.curve->bins()) {
      low = std::min(low, bin.low);
      high = std::max(high, bin.high);
    }
  }
  if (low > high) return {};
  constexpr double kFarthest = 3;
  if (options.reference && std::abs(options.reference->value) <= kFarthest * std::abs(high)) {
    low = std::min(low, options.reference->value);
    high = std::max(high, options.reference->value);
  }
  auto range = axis_range(low, high, /*margin=*/0.05);
  if (from_zero && low == 0) range.low = 0;
  return range;
}

// Calls visit(bins) for each stretch of bins with values.
template <class Visit>
void for_each_stretch(std::span<const CurveBin> bins, const Visit& visit) {
  while (!bins.empty()) {
    const auto is_gap = [](const CurveBin& bin) { return bin.count == 0; };
    const auto begin = std::ranges::find_if_not(bins, is_gap);
    const auto end = std::find_if(begin, bins.end(), is_gap);
    if (begin != end) visit(std::span(begin, end));
    bins = {end, bins.end()};
  }
}

std::string points(std::span<const CurveBin> bins, const PlotArea& area,
                   double (*value)(const CurveBin&)) {
  std::string text;
  for (const auto& bin : bins) {
    text += concat(text.empty() ? "" : "L", area.point(bin.step(), value(bin)));
  }
  return text;
}

std::string path(const char* kind, const std::string& number, const std::string& data) {
  return concat("<path class=\"", kind, number, "\" d=\"", data, "\"/>\n");
}

// `number`: the number of the line in the chart, which determines its colour.
std::string draw_line(const std::vector<CurveBin>& bins, const PlotArea& area,
                      const std::string& number) {
  const auto low = [](const CurveBin& bin) { return bin.low; };
  const auto high = [](const CurveBin& bin) { return bin.high; };
  const auto mean = [](const CurveBin& bin) { return bin.mean(); };
  std::string bands, lines;
  for_each_stretch(bins, [&](std::span<const CurveBin> stretch) {
    if (std::ranges::any_of(stretch, [](const CurveBin& bin) { return bin.low < bin.high; })) {
      const std::vector<CurveBin> back(stretch.rbegin(), stretch.rend());
      bands += concat("M", points(stretch, area, high), "L", points(back, area, low), "z");
    }
    // A single point is drawn as a line of length zero with round ends.
    lines += concat("M", points(stretch, area, mean), stretch.size() == 1 ? "h0" : "");
  });
  std::string svg;
  if (!bands.empty()) svg += path("band", number, bands);
  if (!lines.empty()) svg += path("line", number, lines);
  if (bins.size() > kMostDots) return svg;
  for (const auto& bin : bins) {
    if (bin.count == 0) continue;
    svg += concat("<circle class=\"dot", number, "\" cx=\"", fixed(area.x(bin.step()), 1),
                  "\" cy=\"", fixed(area.y(bin.mean()), 1), "\" r=\"2.5\"/>\n");
  }
  return svg;
}

struct LegendEntry {
  std::string name = {};
  const char* kind = "";
  std::string number = {};
};

// Where an entry of the legend begins. Row 0 is the one next to the plot.
struct LegendPosition {
  double x = 0;
  double row = 0;
};

constexpr double kCharacter = 6.6, kMark = 24, kApart = 16, kLegendRow = 16;

double text_width(const std::string& text) { return kCharacter * static_cast<double>(text.size()); }

// The entries end at the right. Those that have no room in a row are in rows above it.
std::vector<LegendPosition> lay_out(const std::vector<LegendEntry>& entries, double left,
                                    double right) {
  std::vector<LegendPosition> positions(entries.size());
  double end = right, row = 0;
  for (auto i = entries.size(); i-- > 0;) {
    const double width = kMark + text_width(entries[i].name);
    if (end - width < left && end < right) {
      end = right;
      ++row;
    }
    positions[i] = {end - width, row};
    end -= width + kApart;
  }
  return positions;
}

std::string draw_legend(const std::vector<LegendEntry>& entries,
                        const std::vector<LegendPosition>& positions, double top) {
  std::string svg;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const auto& [name, kind, number] = entries[i];
    const double y = top - 12 - kLegendRow * positions[i].row;
    svg += svg_text(positions[i].x + kMark, y, "start", name);
    svg += path(kind, number, concat("M", fixed(positions[i].x, 1), ",", fixed(y - 4, 1), "h18"));
  }
  return svg;
}

}  // namespace

std::string curve_chart(const std::vector<ChartLine>& lines, const AxisRange& steps,
                        const ChartOptions& options) {
  PlotArea area = {.left = 52,
                   .top = 30,
                   .right = options.width - 20,
                   .bottom = options.height - 36,
                   .steps = steps,
                   .values = value_range(lines, options)};
  const auto number_of = [](std::size_t line) { return std::to_string(line % kChartColours); };
  const bool empty =
      std::ranges::none_of(lines, [](const ChartLine& line) { return line.curve->has_values(); });
  const auto is_inside = [&area](const ReferenceLine& reference) {
    return area.values.low <= reference.value && reference.value <= area.values.high;
  };
  const bool has_reference = !empty && options.reference && is_inside(*options.reference);
  std::vector<LegendEntry> legend;
  for (std::size_t i = 0; i < lines.size() && lines.size() > 1; ++i) {
    legend.push_back({lines[i].name, "line", number_of(i)});
  }
  if (has_reference) legend.push_back({options.reference->name, "reference", ""});
  const auto positions = lay_out(legend, text_width(options.unit) + kApart, area.right);
  if (!positions.empty()) area.top += kLegendRow * positions.front().row;

  std::string svg = svg_begin(options.width, options.height);
  for (const auto& tick : ticks(area.values, 5)) svg += value_tick(area, tick);
  svg += step_axis(area);
  svg += svg_text(0, area.top - 12, "start", options.unit);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    svg += draw_line(lines[i].curve->bins(), area, number_of(i));
  }
  if (has_reference) {
    svg += path("reference", "",
                concat("M", fixed(area.left, 1), ",", fixed(area.y(options.reference->value), 1),
                       "H", fixed(area.right, 1)));
  }
  svg += draw_legend(legend, positions, area.top);
  if (empty) {
    svg +=
        svg_text((area.left + area.right) / 2, (area.top + area.bottom) / 2, "middle", "no values");
  }
  return svg + "</svg>\n";
}

}  // namespace moegrad::tools
