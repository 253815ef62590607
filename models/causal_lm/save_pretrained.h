// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "framework/tensor/dtype.h"
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
  /// kBFloat16: the parameters rounded to bfloat16, half as large. By default as they are. Buffers
  /// (correction biases) are always written as they are, as transformers keeps them in float32.
  std::optional<Dtype> dtype = std::nullopt;
  /// A folder whose generation_config.json and files of the tokenizer are copied, such as that
  /// which the model was loaded from. If it has a tokenizer, the files of an earlier one
  /// that it does not have are removed. Empty: all such files stay as they are.
  std::filesystem::path copy_from = {};
};

/// Writes config.json and the weights as Hugging Face stores them: [out, in], in the parameters'
/// dtype, and persistent buffers of reals. The files are model.safetensors, or
/// model-00001-of-0000N.safetensors with model.safetensors.index.json. A tied parameter is written
/// once. The bytes do not depend on how the parameters are sharded or oriented. Keys of the
/// config.json that the model was read from, and that change nothing here, are in the new one.
///
/// Collective: all ranks of the world call it. Rank 0 writes. It holds one whole parameter at a
/// time, twice if dimension 1 is sharded. Earlier weights in the folder are replaced: each file
/// appears complete or not at all. A call that is interrupted leaves the earlier weights or no
/// loadable weights, never a mixture.
///
/// Throws ValueError unless max_shard_bytes >= 1, the model is whole and its mixtures are still
/// there; DtypeError for a dtype that is not of reals; what check_export_folder() throws; Error if
/// a file cannot be written or copied.
void save_pretrained(CausalLM& model, const std::filesystem::path& folder,
                     const SavePretrainedOptions& options = {});

/// ValueError if a file that save_pretrained() might write or remove is a symbolic link: what it
/// points to, such as a file of the Hub's cache, is another model's. Or if it is a folder. Error if
/// a file to copy cannot be read. The folder itself may be a link. A file that has a second name (a
/// hard link) is replaced, so the other stays as it is.
void check_export_folder(const std::filesystem::path& folder,
                         const SavePretrainedOptions& options = {});

/// Whether save_pretrained() may write or remove a file of that name in its folder.
bool is_export_name(const std::string& name);

}  // namespace moegrad::models
