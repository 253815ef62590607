// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

namespace moegrad::optim {

/// Learning rate of step t = 0, 1, ...:      optimizer.set_lr(schedule(step))
///
/// This sets one rate for all groups. To keep the ratios of groups with different rates, use
/// optimizer.scale_lr(schedule(step)) and a schedule whose lr is 1.
using Schedule = std::function<double(std::int64_t step)>;

// Hugging Face's schedules (transformers/optimization.py). Each but constant() begins with a
// warm-up
//
//     lr t / warmup      for t < warmup
//
// so step 0 has rate 0 if there is one. Afterwards, with the progress
//
//     x = (t - warmup) / (total - warmup)
//
// the rate is the formula below. An interval of zero steps counts as one step. Each throws
// ValueError, which begins with the schedule's name, unless 0 <= warmup <= total and lr is finite
// and >= 0.

/// lr at every step.
Schedule constant(double lr);

/// As get_constant_schedule_with_warmup: lr.
Schedule constant_with_warmup(double lr, std::int64_t warmup_steps);

/// As get_linear_schedule_with_warmup: lr max(0, 1 - x).
Schedule linear_with_warmup(double lr, std::int64_t warmup_steps, std::int64_t total_steps);

/// As get_cosine_schedule_with_warmup: lr max(0, (1 + cos(pi x)) / 2). After `total` the rate rises
/// again.
Schedule cosine_with_warmup(double lr, std::int64_t warmup_steps, std::int64_t total_steps);

/// As get_cosine_with_min_lr_schedule_with_warmup with min_lr_rate r: the cosine between lr and
/// r lr, which rises again after `total`,
///
///     lr max(0, (1 - r) (1 + cos(pi x)) / 2 + r)
///
/// ValueError unless 0 <= r <= 1.
Schedule cosine_with_min_lr(double lr, std::int64_t warmup_steps, std::int64_t total_steps,
                            double min_lr_rate);

/// As get_cosine_with_hard_restarts_schedule_with_warmup: the cosine `cycles` times,
///
///     lr (1 + cos(pi (cycles x mod 1))) / 2      for x < 1, then 0
///
/// ValueError unless cycles >= 1.
Schedule cosine_with_restarts(double lr, std::int64_t warmup_steps, std::int64_t total_steps,
                              std::int64_t cycles);

/// As get_polynomial_decay_schedule_with_warmup:
///
///     (lr - end) (1 - x)^power + end      for t <= total, then end
///
/// ValueError unless 0 <= end < lr and power is finite and > 0.
Schedule polynomial_with_warmup(double lr, std::int64_t warmup_steps, std::int64_t total_steps,
                                double power, double end);

/// As get_inverse_sqrt_schedule with a time scale of s steps:
///
///     lr / sqrt((t - warmup + s) / s)
///
/// By default s is the warm-up, or 10000 without one. ValueError unless s >= 1.
Schedule inverse_sqrt(double lr, std::int64_t warmup_steps,
                      std::optional<std::int64_t> timescale = std::nullopt);

/// How warmup_stable_decay decays: 1 - y, or (1 + cos(pi y)) / 2 as get_wsd_schedule by default.
enum class Decay : std::uint8_t { kLinear, kCosine };

/// Warmup-stable-decay, as get_wsd_schedule: the rate rises linearly from 0 over `warmup` steps,
/// stays for `stable` steps, falls to 0 over `decay` steps and stays there. ValueError for a
/// negative count.
///
/// Reference: Hu et al., "MiniCPM", 2024, https://arxiv.org/abs/2404.06395
Schedule warmup_stable_decay(double lr, std::int64_t warmup_steps, std::int64_t stable_steps,
                             std::int64_t decay_steps, Decay decay = Decay::kLinear);

}  // namespace moegrad::optim
