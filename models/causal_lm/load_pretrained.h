// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include "models/causal_lm/model.h"
#include "nn/module.h"

namespace moegrad::models {

/// Fills all parameters and persistent buffers of reals of `module` from a Hugging Face checkpoint:
/// a folder, a .safetensors file or an index (HfCheckpoint). Of a parameter that fully_shard has
/// cut, each rank takes its own part and reads no other; no rank waits for another. Experts may be
/// in the checkpoint one by one or fused as transformers 5 keeps them (HfExperts).
///
/// F16, BF16, F32 and F64 become the parameter's dtype; all but F64 to float32 is exact.
///
/// Tensors whose names end in rotary_emb.inv_freq are passed over, as in transformers: rope
/// computes them. An index whose total_size is wrong is a warning.
///
/// Throws ValueError for a tensor of the module that the checkpoint lacks and for another tensor of
/// it that belongs to none, ShapeError and DtypeError for one of the wrong shape or type, and
/// whatever HfCheckpoint throws; nothing has been written then. The second name of a tied parameter
/// may be absent; where it is present, its bits must equal the first's, else ValueError.
void load_pretrained(nn::Module& module, const std::filesystem::path& path);
/// The same for a model or a part of one, which leaves the tensors of the other parts unread.
/// Mixtures may have the names of the model's files (for mixtral block_sparse_moe.experts.{e}.w1)
/// or those of its modules in transformers 5. The layers of a glm4_moe that predict further tokens
/// are passed over.
void load_pretrained(CausalLM& model, const std::filesystem::path& path);

}  // namespace moegrad::models
