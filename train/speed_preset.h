// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "models/qwen3_moe/config.h"
#include "train/data/text_data.h"

namespace moegrad::training {

/// The model and the tokens of a training step whose speed is measured.
struct SpeedPreset {
  models::Qwen3MoeConfig config = {};
  std::int64_t sequences = 4;
  std::int64_t length = 512;  // tokens of each
};

/// "main": 32 experts, 4 of them per token. "fine": 128 smaller ones, 8 per token, one sequence.
/// "long": main's model on one sequence of 16384. "tiny": for a look at how it runs. Others are a
/// ValueError.
SpeedPreset speed_preset(std::string_view name);

/// Sizes in place of those of a preset, where given.
struct SpeedSizes {
  std::optional<std::int64_t> sequences = {}, length = {}, experts = {};
};

/// `preset` with other sizes. Experts stay as large and a token uses as many of them, so the
/// arithmetic of a step does not depend on their number. ValueError for a size below 1 or fewer
/// experts than a token uses.
SpeedPreset resized(SpeedPreset preset, const SpeedSizes& sizes);

/// Random tokens and targets of sequences [first, first + sequences) of a step, the same whatever
/// the rank that asks.
MicroBatch random_sequences(const SpeedPreset& preset, std::int64_t first, std::int64_t sequences);

}  // namespace moegrad::training
