// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/check_golden/golden_case.h"
#include "tools/check_golden/golden_checks.h"
#include "tools/check_golden/golden_runs.h"

namespace moegrad::tools {

/// How the experts that a float32 run chose compare with those of the float64 run: the same for
/// every token, or else, in the first layer where some differ, all of those by rounding or not
/// (Note [Choices that are rounding]).
enum class Parting : std::uint8_t { kNone, kRounding, kOther };
Parting parting_of(const GoldenRouting& own, const GoldenRouting& reference);

/// Compares the routers' logits, choices, weights and counts of a row, of all ranks.
std::vector<GoldenCheck> check_routing(const GoldenCase& golden, const GoldenValues& expected,
                                       const std::vector<const GoldenComputed*>& ranks, Dtype dtype,
                                       const std::string& prefix);

}  // namespace moegrad::tools
