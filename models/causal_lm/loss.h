// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "models/causal_lm/model.h"

namespace moegrad::models {

/// Scalars [], all on the tape.
struct CausalLMLoss {
  Tensor objective;  // call backward() on it
  Tensor ce_sum;     // (weighed) sum of -log p(target) over this micro-batch's n valid targets
  Tensor aux;        // load-balancing loss of this micro-batch, K at perfect balance
};

/// What the routers add to the objective besides.
struct RouterLossOptions {
  /// aux is the mean over layers of each layer's own loss. Otherwise it pools the layers as Hugging
  /// Face does: then a layer may do without an expert that another layer prefers.
  bool per_layer = false;
  /// The coefficient of the sum over layers of ops::z_loss.
  double z_loss_coef = 0;
  /// How often the experts were chosen in several micro-batches, of which this is one.
  struct Load {
    std::vector<std::vector<std::int64_t>> tokens_per_expert;  // [layers][E]
    std::int64_t tokens = 0;
    std::int64_t targets = 0;  // the valid ones
  };
  /// In place of this micro-batch's own: aux is then this micro-batch's share of the loss of all of
  /// them, weighed by their targets, so that the sum over them is the loss of one large
  /// micro-batch.
  std::optional<Load> load = std::nullopt;
  /// The ranks that have this micro-batch, and in its mixtures a part of its tokens each (tensor
  /// parallelism). aux and losses of routers are then of all parts, alike on all ranks.
  std::shared_ptr<ProcessGroup> token_ranks = nullptr;
  /// The parts of this rank's tokens over which losses of routers are summed apart, and then by
  /// halving (docs/tensor_parallelism.md).
  std::int64_t token_parts = 1;
};

/// What each target counts in ce_sum.
struct TargetWeights {
  Tensor of_targets = {};  // [T], in the dtype of the logits; undefined: 1
  double total = 0;        // their sum over the valid targets of the step
};

/// The share of one micro-batch in the loss of a whole step:
///
///     objective = ce_sum / W + router_aux_loss_coef * aux * n / N + z_loss_coef * z * n / N
///
/// N is the number of valid targets in the step, over all micro-batches and ranks, n that of this
/// micro-batch. W is N, or weights.total where targets have weights. So gradients add up without
/// any mean, and for a single micro-batch this is Hugging Face's loss. targets: int64 [T], the
/// token after each token, -100 if there is none. If forward was given targets, pass the same ones,
/// and their weights. ValueError unless N >= 1 and W > 0, and for a load of other layers or
/// experts, or whose counts are not those of its tokens, and for router logits of a part of the
/// tokens without token_ranks. Collective over these.
///
/// aux is ops::load_balancing_loss of this micro-batch's tokens, by default of all layers together.
/// It is a product of two means, so the same tokens cut into other micro-batches have another aux.
/// A step has the same loss at any world size only if its micro-batches are the same. The
/// probabilities of a router of sigmoid scores s are s / sum(s), as in DeepSeek-V3.
CausalLMLoss causal_lm_loss(const CausalLM::Output& output, const Tensor& targets,
                            std::int64_t global_targets, double router_aux_loss_coef,
                            const RouterLossOptions& options = {},
                            const TargetWeights& weights = {});

/// Per mixture layer [T, E]: logits whose softmax are the probabilities that the balance loss
/// counts, those of the router, or log(sigmoid) of them.
TensorList balanced_logits(const CausalLM::Output& output);

}  // namespace moegrad::models
