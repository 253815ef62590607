// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "models/causal_lm/config.h"
#include "train/data/random_data.h"

namespace moegrad::training {

/// The model and the tokens of a training step, to measure its speed.
struct SpeedPreset {
  models::CausalLMConfig config = {};
  std::int64_t sequences = 4;
  std::int64_t length = 512;  // tokens of each sequence
};

/// "main": 32 experts, 4 of them per token. "fine": 128 smaller experts, 8 per token, one sequence.
/// "long": main's model on one sequence of 16384 tokens. "tiny": for a quick look. ValueError for
/// other names.
SpeedPreset speed_preset(std::string_view name);

/// Sizes that replace those of a preset, if they are given.
struct SpeedSizes {
  std::optional<std::int64_t> sequences = {}, length = {}, experts = {};
};

/// `preset` with other sizes. The size of an expert and the number of experts per token stay the
/// same, so the arithmetic of a step does not depend on the number of experts. ValueError for a
/// size below 1, or fewer experts than a token uses.
SpeedPreset resized(SpeedPreset preset, const SpeedSizes& sizes);

/// Random data of the preset's vocabulary and sequence length. Every step has the same
/// micro-batches. ValueError unless all sizes are at least 1.
RandomData random_data(const SpeedPreset& preset, std::int64_t sequences,
                       std::int64_t micro_batches);

}  // namespace moegrad::training
