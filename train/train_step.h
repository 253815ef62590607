// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "framework/distributed/device_mesh.h"
#include "framework/distributed/parallel_dims.h"
#include "framework/tensor/named_tensor.h"
#include "fsdp/fully_shard.h"
#include "fsdp/step_plan.h"
#include "models/causal_lm/model.h"
#include "optim/optimizer.h"
#include "train/balance.h"
#include "train/data/micro_batch.h"
#include "train/loss_weights.h"
#include "train/tensor_plan.h"

namespace moegrad::training {

/// What one step reports; the same on every rank.
struct StepResult {
  double loss = 0;          // cross-entropy per token plus the weighed auxiliary loss
  double ce = 0;            // nats per token: the mean by StepOptions::loss_weights
  double grad_norm = 0;     // before clipping
  std::int64_t tokens = 0;  // of all ranks
  double model_flops = 0;   // of all ranks: models::training_flops
  /// Mean over tokens and mixture layers of the entropy of the router's probabilities, or of its
  /// sigmoid scores divided by their sum, in nats; 0 without such layers. log E: the routers do not
  /// distinguish their E experts.
  double router_entropy = 0;
  std::vector<std::vector<std::int64_t>> tokens_per_expert = {};  // per mixture layer
  std::vector<TensorList> expert_indices =
      {};  // this rank's micro-batches, per mixture layer [T, K]

  bool is_finite() const { return std::isfinite(loss) && std::isfinite(grad_norm); }
};

/// How a step runs the model on the micro-batch of a turn, which has no tokens in an idle one.
using StepForward = std::function<models::CausalLM::Output(
    models::CausalLM&, const fsdp::Turn&, const MicroBatch&, models::CausalLM::ForwardOptions)>;

/// model(tokens, documents, options).
models::CausalLM::Output run_model(models::CausalLM& model, const fsdp::Turn& turn,
                                   const MicroBatch& batch,
                                   models::CausalLM::ForwardOptions options);

struct StepOptions {
  double max_grad_norm = 1.0;  // 0: no clipping
  Balance balance = {};
  std::uint64_t seed = 0;  // of random numbers in the model: dropout, router_jitter_noise
  /// The number of the step. A model with random numbers needs it: no two steps have the same, and
  /// no two tokens of a step (CausalLMForwardOptions::dropout_ids).
  std::optional<std::int64_t> step = {};
  /// No logits as a whole, and the head's gradients in forward: CausalLMForwardOptions::targets.
  bool linear_cross_entropy = false;
  LossWeights loss_weights = LossWeights::kToken;
  /// The ranks that have the same micro-batches (the axis tp). Null: none.
  std::shared_ptr<ProcessGroup> tensor_ranks = nullptr;
  /// RouterLossOptions::token_parts
  std::int64_t token_parts = 1;
};

/// Parameter groups as usual: decay on matrices, none on vectors.
std::vector<optim::ParamGroup> decay_matrices(const NamedTensors& parameters, double lr,
                                              double weight_decay);

/// Wraps each decoder layer, then the rest; the model knows nothing of it.
fsdp::State& shard_model(models::CausalLM& model, const DeviceMesh& mesh,
                         const fsdp::Policy& policy);

/// Divides the experts over the axis ep of the meshes, and the rest over the axis tp by
/// tensor_plan(), where these have several ranks, and then wraps the model as above. The gradients
/// of a divided model are reduced as fsdp::accumulation_on() says.
fsdp::State& shard_model(models::CausalLM& model, const ParallelMeshes& meshes, fsdp::Policy policy,
                         TensorPlanOptions plan = {});

/// The gradients of experts are summed per part of the tokens (nn::LocalTokenDispatcher).
void divide_tokens(models::CausalLM& model, std::int64_t parts);

/// Decoder layers [0, n) keep only their input, and backward runs them again.
void recompute_layers(models::CausalLM& model, std::int64_t n);

/// One optimizer step of a sharded model, which `forward` runs, then one of its correction biases
/// if it has any. It changes nothing unless loss and gradient norm are finite. ValueError for a
/// model with router_jitter_noise without options.step (with dropout, its layers' Error), and
/// unless `own` has the micro-batches of this rank, one for each of the plan's turns. Error within
/// a DropoutIdsGuard. Collective.
StepResult train_step(models::CausalLM& model, fsdp::StepPlan& plan,
                      const std::vector<MicroBatch>& own, const StepOptions& options,
                      optim::Optimizer& optimizer, const StepForward& forward = run_model);

}  // namespace moegrad::training
