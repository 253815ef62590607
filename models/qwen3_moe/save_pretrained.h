// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>

#include "models/qwen3_moe/model.h"

namespace moegrad::models {

struct SavePretrainedOptions {
  /// Above this the weights go into several files; a larger tensor has one for itself.
  std::int64_t max_shard_bytes = 5'000'000'000;
};

/// Writes config.json and the weights as Hugging Face keeps them, [out, in] and one tensor per
/// expert and projection, in the parameters' dtype: model.safetensors, or
/// model-00001-of-0000N.safetensors with model.safetensors.index.json. A tied parameter is written
/// once. The bytes do not depend on how the parameters are sharded or oriented.
///
/// Collective: all ranks of the world call it. Rank 0 writes, and holds one whole parameter at a
/// time, twice where dimension 1 is sharded. Weights that the folder had are replaced: each file
/// appears complete or not at all, and a call that is interrupted leaves the earlier weights or
/// none to load, not a mixture.
///
/// Throws ValueError unless max_shard_bytes >= 1, Error where a file cannot be written.
void save_pretrained(Qwen3Moe& model, const std::filesystem::path& folder,
                     const SavePretrainedOptions& options = {});

}  // namespace moegrad::models
