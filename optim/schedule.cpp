// SPDX-License-Identifier: Apache-2.0
#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string_view>

#include "framework/runtime/error.h"
#include "framework/runtime/math/elementary.h"

namespace moegrad::optim {
namespace {

/// part / whole; a whole of zero steps counts as one step.
double fraction(std::int64_t part, std::int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(std::max<std::int64_t>(whole, 1));
}

/// Falls from 1 to 0 as `progress` rises from 0 to 1.
double half_cosine(double progress) { return 0.5 * (1.0 + math::cos(std::numbers::pi * progress)); }

void check_peak(std::string_view name, double lr) {
  check<ValueError>(std::isfinite(lr) && lr >= 0.0, name, ": lr must be finite and >= 0, got ", lr);
}

void check_steps(std::string_view name, std::int64_t warmup_steps, std::int64_t total_steps) {
  check<ValueError>(0 <= warmup_steps && warmup_steps <= total_steps, name,
                    ": warmup_steps must be in [0, ", total_steps, "] (total_steps), got ",
                    warmup_steps);
}

void check_warmup(std::string_view name, std::int64_t warmup_steps) {
  check<ValueError>(warmup_steps >= 0, name, ": warmup_steps must be >= 0, got ", warmup_steps);
}

void check_step(std::int64_t step) {
  check<ValueError>(step >= 0, "schedule: step must be >= 0, got ", step);
}

/// The warm-up, and then lr * factor(step).
template <class Factor>
Schedule with_warmup(double lr, std::int64_t warmup_steps, const Factor& factor) {
  return [=](std::int64_t step) {
    check_step(step);
    return lr * (step < warmup_steps ? fraction(step, warmup_steps) : factor(step));
  };
}

/// The warm-up, and then lr * factor(progress from there to total_steps).
template <class Factor>
Schedule with_progress(std::string_view name, double lr, std::int64_t warmup_steps,
                       std::int64_t total_steps, const Factor& factor) {
  check_peak(name, lr);
  check_steps(name, warmup_steps, total_steps);
  return with_warmup(lr, warmup_steps, [=](std::int64_t step) {
    return factor(fraction(step - warmup_steps, total_steps - warmup_steps));
  });
}

}  // namespace

Schedule constant(double lr) {
  check_peak("constant", lr);
  return [lr](std::int64_t /*step*/) { return lr; };
}

Schedule constant_with_warmup(double lr, std::int64_t warmup_steps) {
  check_peak("constant_with_warmup", lr);
  check_warmup("constant_with_warmup", warmup_steps);
  return with_warmup(lr, warmup_steps, [](std::int64_t /*step*/) { return 1.0; });
}

Schedule linear_with_warmup(double lr, std::int64_t warmup_steps, std::int64_t total_steps) {
  check_peak("linear_with_warmup", lr);
  check_steps("linear_with_warmup", warmup_steps, total_steps);
  return with_warmup(lr, warmup_steps, [=](std::int64_t step) {
    return std::max(0.0, fraction(total_steps - step, total_steps - warmup_steps));
  });
}

Schedule cosine_with_warmup(double lr, std::int64_t warmup_steps, std::int64_t total_steps) {
  return with_progress("cosine_with_warmup", lr, warmup_steps, total_steps,
                       [](double progress) { return std::max(0.0, half_cosine(progress)); });
}

Schedule cosine_with_min_lr(double lr, std::int64_t warmup_steps, std::int64_t total_steps,
                            double min_lr_rate) {
  check<ValueError>(0.0 <= min_lr_rate && min_lr_rate <= 1.0,
                    "cosine_with_min_lr: min_lr_rate must be in [0, 1], got ", min_lr_rate);
  return with_progress("cosine_with_min_lr", lr, warmup_steps, total_steps, [=](double progress) {
    return std::max(0.0, half_cosine(progress) * (1.0 - min_lr_rate) + min_lr_rate);
  });
}

Schedule cosine_with_restarts(double lr, std::int64_t warmup_steps, std::int64_t total_steps,
                              std::int64_t cycles) {
  check<ValueError>(cycles >= 1, "cosine_with_restarts: cycles must be >= 1, got ", cycles);
  return with_progress("cosine_with_restarts", lr, warmup_steps, total_steps, [=](double progress) {
    if (progress >= 1.0) return 0.0;
    return std::max(0.0, half_cosine(std::fmod(static_cast<double>(cycles) * progress, 1.0)));
  });
}

Schedule polynomial_with_warmup(double lr, std::int64_t warmup_steps, std::int64_t total_steps,
                                double power, double end) {
  check_peak("polynomial_with_warmup", lr);
  check_steps("polynomial_with_warmup", warmup_steps, total_steps);
  check<ValueError>(std::isfinite(power) && power > 0.0,
                    "polynomial_with_warmup: power must be finite and > 0, got ", power);
  check<ValueError>(0.0 <= end && end < lr, "polynomial_with_warmup: end must be in [0, ", lr,
                    ") (lr), got ", end);
  return [=](std::int64_t step) {
    check_step(step);
    if (step < warmup_steps) return lr * fraction(step, warmup_steps);
    if (step > total_steps) return end;
    const double rest = 1.0 - fraction(step - warmup_steps, total_steps - warmup_steps);
    return (lr - end) * math::pow(rest, power) + end;
  };
}

Schedule inverse_sqrt(double lr, std::int64_t warmup_steps, std::optional<std::int64_t> timescale) {
  check_peak("inverse_sqrt", lr);
  check_warmup("inverse_sqrt", warmup_steps);
  const auto scale = timescale.value_or(warmup_steps > 0 ? warmup_steps : 10'000);
  check<ValueError>(scale >= 1, "inverse_sqrt: timescale must be >= 1, got ", scale);
  return with_warmup(lr, warmup_steps, [=](std::int64_t step) {
    const auto past = static_cast<double>(step - warmup_steps);  // their sum may be no int64
    const auto from = static_cast<double>(scale);
    return 1.0 / std::sqrt((past + from) / from);
  });
}

Schedule warmup_stable_decay(double lr, std::int64_t warmup_steps, std::int64_t stable_steps,
                             std::int64_t decay_steps, Decay decay) {
  check_peak("warmup_stable_decay", lr);
  check<ValueError>(std::min({warmup_steps, stable_steps, decay_steps}) >= 0,
                    "warmup_stable_decay: steps must be >= 0, got ", warmup_steps, ", ",
                    stable_steps, " and ", decay_steps);
  return with_warmup(lr, warmup_steps, [=](std::int64_t step) {
    const auto decayed = step - warmup_steps - stable_steps;
    if (decayed < 0) return 1.0;
    if (decayed >= decay_steps) return 0.0;
    const double progress = fraction(decayed, decay_steps);
    return decay == Decay::kLinear ? 1.0 - progress : half_cosine(progress);
  });
}

}  // namespace moegrad::optim
