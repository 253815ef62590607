// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "framework/tensor/named_tensor.h"

namespace moegrad::optim {

/// By what Muon multiplies the orthogonal update of a matrix [out, in].
enum class MuonAdjust : std::uint8_t {
  kOriginal,  // max(1, out / in)^0.5
  kMatchRms,  // 0.2 max(out, in)^0.5, the size of AdamW's updates
};

/// Parameters that share their settings. A setting that a group leaves out comes from the
/// optimizer's configuration, as in PyTorch. An optimizer's own groups have all settings that it
/// uses; each Config says what a setting means. A setting that the optimizer does not use is an
/// error.
struct ParamGroup {
  NamedTensors parameters = {};
  std::optional<double> lr = {};
  std::optional<double> weight_decay = {};
  std::optional<double> beta1 = {};
  std::optional<double> beta2 = {};
  std::optional<double> eps = {};
  std::optional<bool> amsgrad = {};
  std::optional<double> momentum = {};
  std::optional<bool> nesterov = {};
  std::optional<double> alpha = {};
  std::optional<bool> centered = {};
  std::optional<double> lr_decay = {};
  std::optional<double> initial_accumulator_value = {};
  std::optional<double> beta2_decay = {};
  std::optional<double> min_rms = {};
  std::optional<double> clip_threshold = {};
  std::optional<MuonAdjust> adjust = {};
  /// What messages call the group, and by which an optimizer of several rules finds it (Muon).
  std::string name = {};
};

/// `groups` with the missing settings taken from `defaults`, which has exactly those that
/// `optimizer` uses. ValueError, which begins with the optimizer's name, for a setting that it does
/// not use, and for one outside its range. The ranges of lr and weight_decay are checked by
/// Optimizer.
std::vector<ParamGroup> with_defaults(std::string_view optimizer, std::vector<ParamGroup> groups,
                                      const ParamGroup& defaults);

}  // namespace moegrad::optim
