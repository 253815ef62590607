// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/report/expert_loads.h"

namespace moegrad::tools {

/// Colours of loads, by their logarithm: from a quarter of the mean, or less, in blue, over the
/// mean itself in white, to four times as much, or more, in red. No load at all is darker than any
/// of these.
inline constexpr int kLoadColours = 13;
inline constexpr int kDeadColour = kLoadColours;
int load_colour(double load);
/// "#rrggbb", of 0 <= colour <= kDeadColour.
std::string colour_code(int colour);

/// A bitmap of 16 colours as a data URI: bins from left to right, experts upwards; grey where a bin
/// has no loads.
std::string load_image(const std::vector<std::vector<double>>& loads, std::int64_t experts);

/// The loads of a mixture layer over steps as SVG.
std::string heat_map(const ExpertLoads& loads, std::int64_t layer);
/// What its colours mean.
std::string heat_map_legend();

}  // namespace moegrad::tools
