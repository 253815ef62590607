// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

namespace moegrad::optim {

/// Learning rate of step t = 0, 1, ...:      optimizer.set_lr(schedule(step))
///
/// This sets one rate for all groups. To keep the ratios of groups with different rates, use
/// optimizer.scale_lr(schedule(step)) and a schedule whose lr is 1.
using Schedule = std::function<double(std::int64_t step)>;

Schedule constant(double lr);

/// As Hugging Face's get_cosine_schedule_with_warmup:
///
///     lr t / warmup                                              for t < warmup
///     lr max(0, (1 + cos(pi (t - warmup) / (total - warmup))) / 2)    from there on
///
/// Step 0 has learning rate 0 if there is a warmup. After `total` the rate rises again. ValueError
/// unless 0 <= warmup <= total.
Schedule cosine_with_warmup(double lr, std::int64_t warmup_steps, std::int64_t total_steps);

/// Warmup-stable-decay: the rate rises linearly from 0 over `warmup` steps, stays for `stable`
/// steps, falls linearly to 0 over `decay` steps and stays there. ValueError for a negative count.
///
/// Reference: Hu et al., "MiniCPM", 2024, https://arxiv.org/abs/2404.06395
Schedule warmup_stable_decay(double lr, std::int64_t warmup_steps, std::int64_t stable_steps,
                             std::int64_t decay_steps);

}  // namespace moegrad::optim
