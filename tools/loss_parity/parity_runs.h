// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "framework/distributed/parallel_dims.h"
#include "framework/tensor/dtype.h"
#include "framework/tensor/tensor.h"
#include "fsdp/step_plan.h"
#include "models/causal_lm/config.h"
#include "train/config/train_config.h"
#include "train/data/step_data.h"

namespace moegrad::tools {

struct ParityOptions {
  std::string text;
  std::string preset = "tiny";
  std::int64_t steps = 100;
  std::int64_t micro_batches = 8;  // a power of two, at least 8, so that eight ranks have one each
  std::int64_t batch = 2;          // sequences per micro-batch
  std::int64_t sequence_length = 64;
  double lr = 1e-3;
  double max_grad_norm = 1.0;
  std::uint64_t seed = 1;
  std::string json = "loss_parity.json";
  std::string svg = "loss_parity.svg";
};

/// The routers' choices: [step][micro-batch][mixture layer], each int64 [T, K].
using Choices = std::vector<std::vector<TensorList>>;

/// The results of one path.
struct Run {
  std::string name = {};
  std::vector<double> loss = {};                     // per step, nats per token and auxiliary loss
  std::vector<double> grad_norm = {};                // per step
  Choices choices = {};                              // only on one rank
  std::vector<std::vector<double>> parameters = {};  // whole, after the last step
};

/// What is trained: the preset, or a model whose sums R ranks cut into subtrees: widths of 512, two
/// layers, dense or with experts; or one with a dense layer and two that have shared experts.
enum class ParityModel : std::uint8_t { kPreset, kWideDense, kWideMixture, kAllLayers };

/// One that is not the preset.
models::CausalLMConfig parity_config(ParityModel model);

/// How a sharded run is spread over ranks, and in which form values travel between them.
struct ParityLayout {
  ParallelDims ranks = {};                   // replicas and shards
  std::optional<ParallelDims> experts = {};  // if experts are on a mesh of another shape
  fsdp::Accumulation accumulation = fsdp::Accumulation::kKeepUntilLast;
  std::optional<bool> reshard_after_forward = {};
  Dtype dtype = Dtype::kFloat32;
  bool bf16_wire = false;  // parameters and gradients travel, and are summed, as bfloat16
  bool bf16_compute = false;
  training::MemoryPlan plan = {};  // what layers keep
  bool chunked_loss = false;       // no logits as a whole; the head's gradients are made in forward
  /// After half of the steps the run is saved, and goes on from the checkpoint on as many ranks as
  /// this.
  std::optional<ParallelDims> resumed_on = {};
  ParityModel model = ParityModel::kPreset;
  bool sequence_parallel = false;
  std::int64_t token_parts = 1;

  std::string name() const;
};

/// (a) One rank and plain operations: a loop of per-expert products through Eigen, on row-major
/// weights as in Hugging Face, with nothing fused. Correction biases move as in train_step().
Run run_plain(const ParityOptions& options, const training::StepData& data, Dtype dtype);

/// (b), (c) NpuGMMOp on pre-transposed weights gathered as FRACTAL_NZ, under fully_shard. Each
/// collective is delayed at random on each rank. With `replay`, these experts are taken instead of
/// the routers' choice. A layout with resumed_on needs ranks that are threads.
Run run_sharded(const ParityOptions& options, const training::StepData& data,
                const ParityLayout& layout, const Choices* replay = nullptr);

}  // namespace moegrad::tools
