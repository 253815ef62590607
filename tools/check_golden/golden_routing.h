// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/check_golden/golden_case.h"
#include "tools/check_golden/golden_checks.h"
#include "tools/check_golden/golden_runs.h"

namespace moegrad::tools {

/// How the experts of a float32 run compare with those of the float64 run. kNone: they are the same
/// for every token. Otherwise it describes the first layer where some tokens differ. kRounding: all
/// these tokens differ by rounding (Note [Choices that are rounding]). kOther: some do not.
enum class RoutingDifference : std::uint8_t { kNone, kRounding, kOther };
RoutingDifference routing_difference(const GoldenRouting& own, const GoldenRouting& reference,
                                     const models::CausalLMConfig& config);

/// Compares the routers' logits, choices, weights and counts of a row.
std::vector<GoldenCheck> check_routing(const GoldenCase& golden, const GoldenValues& expected,
                                       const GoldenComputed& computed, Dtype dtype,
                                       const std::string& prefix);

}  // namespace moegrad::tools
