// SPDX-License-Identifier: Apache-2.0
#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "framework/runtime/error.h"

namespace moegrad::optim {
namespace {

/// part / whole; a whole of zero steps counts as one step.
double fraction(std::int64_t part, std::int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(std::max<std::int64_t>(whole, 1));
}

}  // namespace

Schedule constant(double lr) {
  return [lr](std::int64_t /*step*/) { return lr; };
}

Schedule cosine_with_warmup(double lr, std::int64_t warmup_steps, std::int64_t total_steps) {
  check<ValueError>(0 <= warmup_steps && warmup_steps <= total_steps,
                    "cosine_with_warmup: warmup_steps must be in [0, ", total_steps,
                    "] (total_steps), got ", warmup_steps);
  return [=](std::int64_t step) {
    if (step < warmup_steps) return lr * fraction(step, warmup_steps);
    const double progress = fraction(step - warmup_steps, total_steps - warmup_steps);
    return lr * std::max(0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * progress)));
  };
}

Schedule warmup_stable_decay(double lr, std::int64_t warmup_steps, std::int64_t stable_steps,
                             std::int64_t decay_steps) {
  check<ValueError>(std::min({warmup_steps, stable_steps, decay_steps}) >= 0,
                    "warmup_stable_decay: steps must be >= 0, got ", warmup_steps, ", ",
                    stable_steps, " and ", decay_steps);
  return [=](std::int64_t step) {
    if (step < warmup_steps) return lr * fraction(step, warmup_steps);
    const auto decayed = step - warmup_steps - stable_steps;
    if (decayed < 0) return lr;
    return decayed < decay_steps ? lr * (1.0 - fraction(decayed, decay_steps)) : 0.0;
  };
}

}  // namespace moegrad::optim
