// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/check_golden/golden_case.h"
#include "tools/check_golden/golden_runs.h"

namespace moegrad::tools {

/// One compared quantity. It holds if error <= limit, so it does not hold for a NaN.
struct GoldenCheck {
  std::string quantity;
  double error = 0;
  double limit = 0;
  std::string worst = {};  // which tensor, or step, has the largest error

  bool holds() const { return error <= limit; }
};

/// Compares the results of a path in `dtype` with everything that the folder expects. ValueError if
/// the folder expects values for a parameter that the model does not have.
std::vector<GoldenCheck> check_golden(const GoldenCase& golden, const GoldenResults& results,
                                      Dtype dtype);

}  // namespace moegrad::tools
