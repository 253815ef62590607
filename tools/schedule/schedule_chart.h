// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "plan/schedule/simulate.h"

namespace moegrad::tools {

/// A simulated schedule as an SVG file: a row per rank with its actions over time, and its bubble
/// and peak in numbers; below, what is live on each rank.
///
/// F is blue, I teal, W green, B orange, R grey. The darker of a rank's stages come later in the
/// model. Each box has its micro-batch; a pair is one box, F above. Thin lines lead from what makes
/// a message to what needs it. Under a row are UNSHARD, purple, and REDUCE_GRAD, amber.
std::string schedule_chart(const std::string& title, const plan::Simulation& simulation);

}  // namespace moegrad::tools
