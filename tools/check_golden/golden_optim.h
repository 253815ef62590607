// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tools/check_golden/golden_checks.h"

namespace moegrad::tools {

/// Note [Golden folders of optimizers]
/// `after_20_steps.safetensors` has, in float64, `NAME.K`: parameter K = 0, 1, ... of any shape
/// after 20 steps t = 0, 1, ... of torch.optim's
///
///     adamw, adamw_amsgrad    weight decay 0.1; betas 0.9 and 0.95, with amsgrad 0.9 and 0.999
///     adam                    weight decay 0.1, added to the gradient
///     sgd_nesterov            weight decay 0.1, momentum 0.9
///     rmsprop, adagrad        no weight decay; RMSprop's momentum is 0.5
///     adafactor               weight decay 0.1
///
/// at learning rate 1e-2, from cos(0.21 i) over the flat index i, with gradients
/// sin((0.37 + 0.01 K) i + 1.3 t) (1 + 0.1 t). All optimizers have the same parameters.
///
/// `schedules.json` has `base_lr` and `lr_of_steps_0_to_N`, an object of the learning rates that
/// Hugging Face's schedules have at steps 0 to N. Their names state the steps of warm-up (w), the
/// number of steps, and the other parameters:
///
///     hf_constant_w10    hf_linear_w10_60    hf_cosine_w10_60    hf_inverse_sqrt_w10
///     hf_cosine_restarts3_w10_60 (cycles)    hf_cosine_min_lr_rate0.1_w10_60
///     hf_polynomial_w10_60_p2_end1e-3 (power, last rate)    hf_wsd_w10_d20_60 (steps of decay)
///
/// An optimizer, or a kind of schedule, that the folder has not is reported as missing.

/// What optimizers and schedules are allowed to differ by, the latter relative to the base rate.
inline constexpr double kGoldenOptim = 1e-12;

struct GoldenOptim {
  std::vector<GoldenCheck> checks;   // each names what it has compared
  std::vector<std::string> missing;  // what the folder lacks
};

/// Compares optimizers and schedules with everything that the folder expects. ValueError for the
/// name of an optimizer or schedule that is not above, for a parameter that is left out, and for
/// other malformed files; DtypeError for a tensor that is not float64.
GoldenOptim check_golden_optim(const std::filesystem::path& folder);

}  // namespace moegrad::tools
