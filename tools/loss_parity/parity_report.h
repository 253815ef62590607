// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/loss_parity/parity_runs.h"

namespace moegrad::tools {

/// One proved, or broken, bound.
struct ParityCheck {
  std::string what;
  double worst = 0;  // largest relative difference of the losses, or the count of differing values
  double limit = 0;
  bool holds = false;
};

/// |a - b| / |a| of the losses at each step.
std::vector<double> relative_differences(const Run& a, const Run& b);

/// Loss, grad norm and final parameters equal to the last bit: limit 0 differing values.
ParityCheck check_bitwise(const Run& a, const Run& b);

/// Every loss within `limit`, relative.
ParityCheck check_close(const std::string& what, const Run& a, const Run& b, double limit);

/// The first step at which a router chose other experts for some token; nothing if none did.
std::optional<std::int64_t> first_different_choice(const Run& a, const Run& b);

/// Up to the step of the first different choice within `before`, from there on within `after`.
std::vector<ParityCheck> check_free_running(const Run& a, const Run& b, double before,
                                            double after);

/// One curve of the losses, and how many of the runs have it: equal to the last bit at every step.
struct LossCurve {
  const Run* run = nullptr;  // the first of them
  std::int64_t runs = 1;

  std::string name() const;
};
/// In the order of their first runs, which must outlive them.
std::vector<LossCurve> distinct_curves(const std::vector<Run>& runs);

void write_parity_json(const std::string& path, const std::vector<Run>& runs,
                       const std::vector<ParityCheck>& checks);

/// One plot: the distinct loss curves above, their differences from the first one below.
void write_parity_svg(const std::string& path, const std::vector<Run>& runs);

}  // namespace moegrad::tools
