// SPDX-License-Identifier: Apache-2.0
#include "tools/report/heat_map.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "tools/report/bitmap.h"
#include "tools/report/markup.h"
#include "tools/report/svg.h"

namespace moegrad::tools {
namespace {

constexpr double kOctaves = 2;  // to each side of the mean
constexpr Rgb kDead = {5, 10, 30};
constexpr Rgb kNothing = {150, 150, 150};
constexpr int kNothingColour = kDeadColour + 1;

// Blue, white, red: people who confuse red and green can also tell these apart.
constexpr std::array<Rgb, 5> kStops = {
    {{33, 102, 172}, {146, 197, 222}, {247, 247, 247}, {244, 165, 130}, {178, 24, 43}}};

Rgb rgb_of(int colour) {
  if (colour == kDeadColour) return kDead;
  if (colour == kNothingColour) return kNothing;
  const double at = static_cast<double>(colour) * (kStops.size() - 1) / (kLoadColours - 1);
  const auto stop = std::min(static_cast<std::size_t>(at), kStops.size() - 2);
  const double part = at - static_cast<double>(stop);
  const auto mix = [&](std::uint8_t from, std::uint8_t to) {
    return static_cast<std::uint8_t>(std::lround(from + part * (to - from)));
  };
  return {mix(kStops[stop].red, kStops[stop + 1].red),
          mix(kStops[stop].green, kStops[stop + 1].green),
          mix(kStops[stop].blue, kStops[stop + 1].blue)};
}

}  // namespace

int load_colour(double load) {
  if (load == 0) return kDeadColour;
  const double octaves = std::clamp(std::log2(load), -kOctaves, kOctaves);
  constexpr int kMiddle = kLoadColours / 2;
  return kMiddle + static_cast<int>(std::lround(octaves / kOctaves * kMiddle));
}

std::string colour_code(int colour) {
  const auto rgb = rgb_of(colour);
  std::array<char, 8> text{};
  std::snprintf(text.data(), text.size(), "#%02x%02x%02x", rgb.red, rgb.green, rgb.blue);
  return text.data();
}

std::string load_image(const std::vector<std::vector<double>>& loads, std::int64_t experts) {
  Palette palette = {};
  for (int colour = 0; colour <= kNothingColour; ++colour) {
    palette[static_cast<std::size_t>(colour)] = rgb_of(colour);
  }
  std::vector<std::vector<std::uint8_t>> rows(static_cast<std::size_t>(experts));
  for (std::size_t expert = 0; expert < rows.size(); ++expert) {
    for (const auto& bin : loads) {
      const int colour = bin.empty() ? kNothingColour : load_colour(bin[expert]);
      rows[expert].push_back(static_cast<std::uint8_t>(colour));
    }
  }
  return bitmap_uri(rows, palette);
}

std::string heat_map(const ExpertLoads& loads, std::int64_t layer) {
  const auto experts = loads.experts(layer);
  const auto values = loads.loads(layer);
  constexpr double kWidth = 460, kTop = 24;
  const double height = std::clamp(2.0 * static_cast<double>(experts), 136.0, 256.0);
  // The pixels of step s and expert e reach from s and e to s + 1 and e + 1; ticks are in their
  // middle.
  const PlotArea area = {.left = 52,
                         .top = kTop,
                         .right = kWidth - 20,
                         .bottom = kTop + height,
                         .steps = {static_cast<double>(loads.first_step()) - 0.5,
                                   static_cast<double>(loads.end_step()) - 0.5},
                         .values = {-0.5, static_cast<double>(experts) - 0.5}};
  std::string svg = svg_begin(kWidth, kTop + height + 36);
  svg += concat("<image x=\"", fixed(area.left, 1), "\" y=\"", fixed(area.top, 1), "\" width=\"",
                fixed(area.right - area.left, 1), "\" height=\"", fixed(area.bottom - area.top, 1),
                "\" preserveAspectRatio=\"none\" href=\"", load_image(values, experts), "\"/>\n");
  for (const auto& tick : ticks(area.values, 4, /*integers=*/true)) {
    svg += svg_text(area.left - 6, area.y(tick.value) + 4, "end", tick.label);
  }
  if (const auto& last = values.back(); !last.empty()) {
    const auto [least, most] = std::ranges::minmax(last);
    svg += svg_text(area.right, area.top - 8, "end",
                    concat("last: ", fixed(least, 2), " to ", fixed(most, 2), " of the mean, ",
                           std::to_string(loads.dead(layer)), " dead"));
  }
  const auto title = concat("expert, mixture layer ", std::to_string(layer));
  return concat(svg, svg_text(0, area.top - 8, "start", title), step_axis(area), "</svg>\n");
}

std::string heat_map_legend() {
  constexpr double kWidth = 460, kHeight = 44, kCell = 24, kLeft = 52;
  std::string svg = svg_begin(kWidth, kHeight);
  const auto cell = [&](double fraction, int colour) {
    svg += concat("<rect x=\"", fixed(kLeft + kCell * fraction, 1), "\" y=\"2\" width=\"",
                  fixed(kCell, 1), "\" height=\"16\" fill=\"", colour_code(colour), "\"/>\n");
  };
  for (int colour = 0; colour < kLoadColours; ++colour) cell(colour, colour);
  constexpr double kDeadPlace = kLoadColours + 1.5;  // separate from the others
  cell(kDeadPlace, kDeadColour);
  svg += svg_text(kLeft + kCell * (kDeadPlace + 0.5), 34, "middle", "none");
  for (const auto& [load, label] :
       {std::pair{0.25, "1/4 or less"}, std::pair{0.5, "1/2"}, std::pair{1.0, "the mean"},
        std::pair{2.0, "2 times"}, std::pair{4.0, "4 or more"}}) {
    const double fraction = (std::log2(load) / kOctaves + 1) / 2;
    svg += svg_text(kLeft + kCell * (0.5 + fraction * (kLoadColours - 1)), 34, "middle", label);
  }
  return svg + "</svg>\n";
}

}  // namespace moegrad::tools
