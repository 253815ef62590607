// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>

#include "models/qwen3_moe/model.h"
#include "nn/module.h"

namespace moegrad::models {

/// Fills all parameters of `module` from a Hugging Face checkpoint: a folder, a .safetensors file
/// or an index (HfCheckpoint). Of a parameter that fully_shard has cut, each rank takes its
/// own part and reads no other; no rank waits for another. Experts may stand in the checkpoint one
/// by one or fused as transformers 5 keeps them (HfExperts).
///
/// F16, BF16, F32 and F64 become the parameter's dtype; all but F64 to float32 is exact.
///
/// Throws ValueError for a parameter that the checkpoint lacks and for a tensor of it that belongs
/// to none, ShapeError and DtypeError for one of the wrong shape or type, and whatever HfCheckpoint
/// throws; nothing has been written then. The second name of a tied parameter may be absent; where
/// it is present, its bits must be those of the first, else ValueError.
void load_pretrained(nn::Module& module, const std::filesystem::path& path);

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
