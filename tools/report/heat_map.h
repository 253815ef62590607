// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/report/expert_loads.h"

namespace moegrad::tools {

/// The number of colours for loads. They depend on the logarithm of the load: blue for a quarter of
/// the mean or less, white for the mean, red for four times the mean or more. The colour for no
/// load at all is darker than any of these.
inline constexpr int kLoadColours = 13;
inline constexpr int kDeadColour = kLoadColours;
int load_colour(double load);
/// The colour as "#rrggbb", for 0 <= colour <= kDeadColour.
std::string colour_code(int colour);

/// A bitmap of 16 colours as a data URI: bins from left to right, experts upwards. Bins without
/// loads are grey.
std::string load_image(const std::vector<std::vector<double>>& loads, std::int64_t experts);

/// The loads of a mixture layer over steps as SVG.
std::string heat_map(const ExpertLoads& loads, std::int64_t layer);
/// The legend: what the colours mean.
std::string heat_map_legend();

}  // namespace moegrad::tools
