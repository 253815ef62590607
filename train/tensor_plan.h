// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "models/causal_lm/config.h"
#include "parallel/tensor/styles.h"

namespace moegrad::training {

struct TensorPlanOptions {
  /// Between layers each rank has its part of the tokens, which norms and residuals then cost.
  bool sequence_parallel = false;
  /// Logits are this rank's part of the vocabulary (CausalLM::Output::vocabulary). Otherwise they
  /// are gathered.
  bool loss_parallel = true;
  /// The ranks have the experts between them (parallel::expert_parallel), and not all of them each.
  bool expert_parallel = false;
  /// Parts of a micro-batch over which the gradients of experts are summed apart: a multiple of the
  /// ranks, or, with expert_parallel, as many (nn::LocalTokenDispatcher).
  std::int64_t token_parts = 1;
};

/// The plan for parallel::parallelize_module of a CausalLM: projections by heads, MLPs by their
/// inner size, embedding, head and loss by the vocabulary. A mixture of experts sees this rank's
/// part of the tokens, with or without sequence_parallel.
parallel::ParallelPlan tensor_plan(const models::CausalLMConfig& config,
                                   const TensorPlanOptions& options);

}  // namespace moegrad::training
