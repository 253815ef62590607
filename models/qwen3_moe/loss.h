// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "models/qwen3_moe/model.h"

namespace moegrad::models {

/// Scalars [], all on the tape.
struct Qwen3MoeLoss {
  Tensor objective;  // call backward() on it
  Tensor ce_sum;     // sum of -log p(target) over this micro-batch's n valid targets
  Tensor aux;        // load-balancing loss of this micro-batch, K at perfect balance
};

/// The share of one micro-batch in the loss of a whole step:
///
///     objective = ce_sum / N + router_aux_loss_coef * aux * n / N
///
/// N is the number of valid targets in the step, over all micro-batches and ranks. So gradients add
/// up without any mean, and for a single micro-batch this is Hugging Face's loss. targets: int64
/// [T], the token after each token, -100 if there is none. If forward was given targets, pass the
/// same ones. ValueError unless N >= 1.
///
/// aux pools the layers as Hugging Face does, but only the tokens of this micro-batch. It is a
/// product of two means, so the same tokens cut into other micro-batches have another aux. A step
/// has the same loss at any world size only if its micro-batches are the same.
Qwen3MoeLoss qwen3_moe_loss(const Qwen3Moe::Output& output, const Tensor& targets,
                            std::int64_t global_targets, double router_aux_loss_coef);

}  // namespace moegrad::models
