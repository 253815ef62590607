// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "examples/text_data.h"
#include "models/qwen3_moe_config.h"

namespace moegrad::examples {

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

/// Random tokens and targets of sequences [first, first + sequences) of a step, the same whatever
/// the rank that asks.
MicroBatch random_sequences(const SpeedPreset& preset, std::int64_t first, std::int64_t sequences);

}  // namespace moegrad::examples
