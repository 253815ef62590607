// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "framework/distributed/device_mesh.h"
#include "framework/tensor/named_tensor.h"
#include "fsdp/fully_shard.h"
#include "models/qwen3_moe/model.h"
#include "optim/adamw.h"
#include "train/accumulation.h"
#include "train/data/training_data.h"

namespace moegrad::training {

/// The results of one step. They are the same on every rank.
struct StepResult {
  double loss = 0;       // cross-entropy per token plus the weighed auxiliary loss
  double ce = 0;         // nats per token
  double grad_norm = 0;  // before clipping
  std::vector<std::vector<std::int64_t>> tokens_per_expert = {};  // per mixture layer
  std::vector<TensorList> expert_indices =
      {};  // this rank's micro-batches, per mixture layer [T, K]

  bool is_finite() const { return std::isfinite(loss) && std::isfinite(grad_norm); }
};

struct StepOptions {
  double max_grad_norm = 1.0;  // 0: no clipping
  std::int64_t recompute_layers = 0;
  bool linear_cross_entropy = false;  // no logits as a whole: Qwen3MoeForwardOptions::targets
  Accumulation accumulation = Accumulation::kKeepUntilLast;
  /// Experts to take instead of the routers' choice: [micro-batch][mixture layer].
  const std::vector<TensorList>* replay = nullptr;
};

/// The usual parameter groups: weight decay on matrices, none on vectors.
std::vector<optim::ParamGroup> decay_matrices(const NamedTensors& parameters, double lr,
                                              double weight_decay);

/// Wraps each decoder layer, then the rest. The model's code does not know about it.
fsdp::State& shard_model(models::Qwen3Moe& model, const DeviceMesh& mesh,
                         const fsdp::Policy& policy);

/// Sums over the ranks of `group` in the order of `terms` [M]: the same double on every rank. A
/// rank passes its own terms at their positions, and zeros for the terms of others. No
/// communication without a group.
double sum_in_order(std::vector<double> terms, const std::shared_ptr<ProcessGroup>& group);

/// One optimizer step of a sharded model. `batches` are all M micro-batches of the step; each rank
/// runs its share (Note [Who runs which micro-batch]). Changes nothing unless loss and gradient
/// norm are finite.
StepResult train_step(models::Qwen3Moe& model, fsdp::State& state,
                      const std::vector<MicroBatch>& batches, const StepOptions& options,
                      optim::AdamW& optimizer);

/// The mean cross-entropy, in nats per target, over the held-out batches, spread over the ranks.
/// Collective: every rank runs the same number of forwards. Calls `before_batch` before each
/// forward; it may throw, but then on all ranks.
double evaluate(
    models::Qwen3Moe& model, const TrainingData& data,
    const std::function<void()>& before_batch = [] {});

/// Samples `bytes` bytes after `prompt`, each from the last `context` bytes. Collective: every rank
/// computes the same text. Calls `before_byte` as evaluate() calls `before_batch`.
std::string sample(
    models::Qwen3Moe& model, const std::string& prompt, std::int64_t bytes, std::int64_t context,
    double temperature, std::uint64_t seed, const std::function<void()>& before_byte = [] {});

/// The share of the words of `text` that appear in `corpus` as words (letters only, as written).
double known_words(std::string_view text, std::string_view corpus);

}  // namespace moegrad::training
