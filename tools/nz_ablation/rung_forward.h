// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/tensor/documents.h"
#include "models/causal_lm/model.h"
#include "nn/moe.h"
#include "tools/nz_ablation/nz_rungs.h"

namespace moegrad::tools {

/// model(tokens, documents) with experts that multiply as `rung` does. All modules run with their
/// hooks, except the mixtures: their nodes are called one by one.
models::CausalLM::Output run_forward(models::CausalLM& model, const Rung& rung,
                                     const Tensor& tokens, const Documents& documents);

/// moe(x) with experts that multiply as `rung` does.
nn::MoE::Output run_forward(nn::MoE& moe, const Rung& rung, const Tensor& x);

}  // namespace moegrad::tools
