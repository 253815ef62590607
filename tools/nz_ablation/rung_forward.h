// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/tensor/documents.h"
#include "models/qwen3_moe/model.h"
#include "nn/moe.h"
#include "tools/nz_ablation/nz_rungs.h"

namespace moegrad::tools {

/// model(tokens, documents), whose experts multiply as `rung` does: the same modules and hooks,
/// but for those of the mixtures, of which the nodes are called.
models::Qwen3Moe::Output run_forward(models::Qwen3Moe& model, const Rung& rung,
                                     const Tensor& tokens, const Documents& documents);

/// moe(x), likewise.
nn::MoE::Output run_forward(nn::MoE& moe, const Rung& rung, const Tensor& x);

}  // namespace moegrad::tools
