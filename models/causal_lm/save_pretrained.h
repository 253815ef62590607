// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>

#include "models/causal_lm/hf_names.h"
#include "models/causal_lm/model.h"

namespace moegrad::models {

struct SavePretrainedOptions {
  /// If the weights are larger than this, they go into several files. A tensor that is larger has a
  /// file of its own.
  std::int64_t max_shard_bytes = 5'000'000'000;
  /// By default experts one by one under the names that both versions of transformers write for the
  /// model_type. kFused: under the names of the modules of transformers 5.
  HfExperts experts = HfExperts::kPerExpert;
};

/// Writes config.json and the weights as Hugging Face stores them: [out, in], in the parameters'
/// dtype, and persistent buffers of reals. The files are model.safetensors, or
/// model-00001-of-0000N.safetensors with model.safetensors.index.json. A tied parameter is written
/// once. The bytes do not depend on how the parameters are sharded or oriented.
///
/// Collective: all ranks of the world call it. Rank 0 writes. It holds one whole parameter at a
/// time, twice if dimension 1 is sharded. Earlier weights in the folder are replaced: each file
/// appears complete or not at all. A call that is interrupted leaves the earlier weights or no
/// loadable weights, never a mixture.
///
/// Throws ValueError unless max_shard_bytes >= 1, the model is whole and its mixtures are still
/// there, Error if a file cannot be
/// written.
void save_pretrained(CausalLM& model, const std::filesystem::path& folder,
                     const SavePretrainedOptions& options = {});

}  // namespace moegrad::models
