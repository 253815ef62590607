// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/compare_losses/metrics_run.h"

namespace moegrad::tools {

struct ComparisonOptions {
  bool bitwise = false;  // otherwise |a - b| <= atol + rtol * |a|
  double rtol = 0;
  double atol = 0;
  bool common = false;  // compare only what both runs have
};

struct LargestDifference {
  double value = 0;
  std::optional<std::int64_t> step = {};  // the first step with it; none if all values are equal
};

struct QuantityComparison {
  std::int64_t differing = 0;  // steps
  LargestDifference absolute = {};
  LargestDifference relative = {};  // |a - b| / |a|
};

struct DifferingValue {
  std::int64_t step = 0;
  std::string_view quantity = {};
  double a = 0;
  double b = 0;
};

struct LossComparison {
  std::int64_t steps = 0;  // steps that both runs have
  std::array<QuantityComparison, kComparedQuantities.size()> quantities = {};
  std::optional<DifferingValue> first = {};
  std::vector<std::int64_t> only_a = {};
  std::vector<std::int64_t> only_b = {};
  QuantityComparison validation = {};  // of the validation losses after steps that both runs have
  std::vector<std::int64_t> validation_only_a = {};
  std::vector<std::int64_t> validation_only_b = {};
  bool equal = false;  // as the options ask for
};

/// Compares step by step, validation losses too. NaN equals NaN; its difference from a number is
/// infinite. ValueError if only the common steps are compared and there are none.
LossComparison compare_losses(const MetricsRun& a, const MetricsRun& b,
                              const ComparisonOptions& options);

/// A table, the first value that differs, the steps and validation losses that only one run has,
/// and the verdict.
std::string to_string(const MetricsRun& a, const MetricsRun& b, const ComparisonOptions& options,
                      const LossComparison& comparison);

}  // namespace moegrad::tools
