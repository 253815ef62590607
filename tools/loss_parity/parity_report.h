// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/loss_parity/parity_runs.h"

namespace moegrad::tools {

/// One bound, which holds or is broken.
struct ParityCheck {
  std::string what;
  double worst = 0;  // largest relative difference of the losses, or the count of differing values
  double limit = 0;
  bool holds = false;
};

/// |a - b| / |a| of the losses at each step.
std::vector<double> relative_differences(const Run& a, const Run& b);

/// Checks that losses, gradient norms and final parameters are equal to the last bit. The limit is
/// 0 differing values.
ParityCheck check_bitwise(const Run& a, const Run& b);

/// Checks that every loss is within `limit`, relative.
ParityCheck check_close(const std::string& what, const Run& a, const Run& b, double limit);

/// The first step at which a router chose other experts for some token; nothing if none did.
std::optional<std::int64_t> first_different_choice(const Run& a, const Run& b);

/// Checks that losses are within `before` up to the step of the first different choice, and within
/// `after` from there on.
std::vector<ParityCheck> check_free_running(const Run& a, const Run& b, double before,
                                            double after);

/// One curve of the losses, and the number of runs that have it, equal to the last bit at every
/// step.
struct LossCurve {
  const Run* run = nullptr;  // the first of these runs
  std::int64_t runs = 1;

  std::string name() const;
};
/// The distinct curves in the order of their first runs. The runs must outlive the curves.
std::vector<LossCurve> distinct_curves(const std::vector<Run>& runs);

void write_parity_json(const std::string& path, const std::vector<Run>& runs,
                       const std::vector<ParityCheck>& checks);

/// Draws two charts: the distinct loss curves, and below them log10 of their relative differences
/// from the first curve.
void write_parity_svg(const std::string& path, const std::vector<Run>& runs);

}  // namespace moegrad::tools
