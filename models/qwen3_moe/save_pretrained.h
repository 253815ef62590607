// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>

#include "models/qwen3_moe/model.h"

namespace moegrad::models {

struct SavePretrainedOptions {
  /// If the weights are larger than this, they go into several files. A tensor that is larger has a
  /// file of its own.
  std::int64_t max_shard_bytes = 5'000'000'000;
};

/// Writes config.json and the weights as Hugging Face stores them: [out, in], one tensor per expert
/// and projection, in the parameters' dtype. The files are model.safetensors, or
/// model-00001-of-0000N.safetensors with model.safetensors.index.json. A tied parameter is written
/// once. The bytes do not depend on how the parameters are sharded or oriented.
///
/// Collective: all ranks of the world call it. Rank 0 writes. It holds one whole parameter at a
/// time, twice if dimension 1 is sharded. Earlier weights in the folder are replaced: each file
/// appears complete or not at all. A call that is interrupted leaves the earlier weights or no
/// loadable weights, never a mixture.
///
/// Throws ValueError unless max_shard_bytes >= 1 and the model is whole, Error if a file cannot be
/// written.
void save_pretrained(Qwen3Moe& model, const std::filesystem::path& folder,
                     const SavePretrainedOptions& options = {});

}  // namespace moegrad::models
