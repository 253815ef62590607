// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "framework/distributed/parallel_dims.h"
#include "framework/runtime/cpu_kernels.h"
#include "framework/runtime/log.h"
#include "framework/tensor/dtype.h"
#include "framework/tensor/layout.h"
#include "fsdp/policy.h"
#include "models/causal_lm/config.h"
#include "nn/experts.h"
#include "optim/param_group.h"
#include "optim/schedule.h"
#include "train/balance.h"
#include "train/data/token_source.h"
#include "train/loss_weights.h"

namespace moegrad::training {

/// What the layers of a model keep for backward, make again or swap. Bits do not change. Lists are
/// items, separated by commas.
struct MemoryPlan {
  /// "none", or of:
  ///
  ///     light            results of norms, with rotated queries and keys, of activations, and
  ///                      permuted tokens, where they come from no other rank
  ///     medium           also the first products of experts and of dense MLPs, and all of the
  ///                      shared expert
  ///     full             also mixtures and MLPs as wholes, which keep their input alone
  ///     adaptive         products and activation of experts, in a layer and step in which this rank
  ///                      has 1.25 times as many rows as it has sent
  ///     layernorm, moe_act, core_attn          results of layers' norms, of experts' activation,
  ///                                            of attention: Megatron-LM's names
  ///     mlp, moe, shared_experts               dense MLPs, mixtures, shared experts as wholes
  ///     a path           modules as wholes: "model.layers.0", "model.layers.*.self_attn"
  std::string recompute = "none";
  /// The first layers, as wholes.
  std::int64_t recompute_layers = 0;
  /// "none", or of:
  ///
  ///     activations      all that layers save and do not make again, from 4096 bytes on
  ///     attn_norm, qkv_linear, core_attn, attn_proj, mlp_norm, expert_fc1, moe_act
  ///                      what these read: Megatron-LM's names
  ///     a path           results within modules: "model.layers.*.mlp.experts"
  std::string offload = "none";
  std::int64_t offload_window = std::int64_t{64} << 20;  // SwapOptions::window
};

/// How the learning rate goes on after its linear warmup.
enum class ScheduleKind : std::uint8_t { kConstant, kCosine, kWarmupStableDecay };

/// Steps from `begin` up to `end`.
struct StepRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  bool contains(std::int64_t step) const { return begin <= step && step < end; }
  bool operator==(const StepRange&) const = default;
};

/// Everything that a training run depends on. The defaults train the "small" preset in one to two
/// minutes. Flags, option files, the record in a checkpoint and what is printed are views of it,
/// through train_options().
struct TrainConfig {
  struct Data {
    std::string text;                             // empty: the King James text
    std::string tokens;                           // a tokenized file instead of a text
    std::optional<TokenDtype> token_dtype;        // of `tokens`; uint16 unless set
    std::string target_mask;                      // which of `tokens` are targets; empty: all
    std::optional<std::int64_t> end_of_document;  // id that ends the documents of `tokens`
    bool pack = false;  // whole documents, up to batch * sequence_length tokens per micro-batch
    std::int64_t micro_batches = 2;  // per step, over all ranks
    std::int64_t batch = 8;          // sequences per micro-batch
    std::int64_t sequence_length = 128;
    std::int64_t validation_sequences = 256;
    bool overfit = false;  // the first step's batches in every step
  };
  struct Model {
    std::string preset = "small";
    std::string config;    // a config.json instead of a preset
    std::string hf_model;  // a folder in Hugging Face's form: its config.json, and its weights
    Dtype dtype = Dtype::kFloat32;
    bool grouped_matmul_nz_transpose = true;          // the default of the next two
    std::optional<Layout> layout;                     // of gathered expert weights
    std::optional<nn::ExpertWeights> expert_weights;  // as they are stored
  };
  struct Parallel {
    int world_size = 2;
    int threads_per_rank = 1;
    std::optional<CpuKernels> kernels;  // the fastest by default
    // The ways to divide a model: ParallelDims, whose dp_shard is what these leave of the ranks.
    int replicas = 1;          // copies of the sharded model
    int context_parallel = 1;  // nothing implements it yet: 1
    int tensor_parallel = 1;
    bool sequence_parallel = false;         // between the layers of tensor parallelism
    std::int64_t token_parts = 1;           // of a micro-batch, over which mixtures sum apart
    int pipeline_parallel = 1;              // as context_parallel
    int expert_parallel = 1;                // ranks that have the experts of a layer between them
    std::int64_t collective_deadline = 60;  // seconds, LaunchOptions::deadline
    bool linear_only_shard = false;
    int prefetch = 1;
    std::optional<Dtype> wire_dtype;    // of gathered parameters; the model's own unless bf16
    std::optional<Dtype> reduce_dtype;  // of reduced gradients; the model's own unless bf16
  };
  struct Memory {
    std::optional<bool> reshard_after_forward;  // fsdp::Policy's default unless set
    MemoryPlan plan = {};
    bool linear_cross_entropy = false;
    std::int64_t budget = 0;  // bytes of each rank; 0: what the system gives
  };
  struct Optim {
    std::string optimizer = "adamw";  // OptimizerKind::name
    optim::ParamGroup settings;       // of it: what is given besides lr and weight_decay
    std::int64_t steps = 500;
    double lr = 4e-3;
    ScheduleKind schedule = ScheduleKind::kCosine;
    std::optional<std::int64_t> warmup;  // by default a tenth of the steps, at most 40
    double weight_decay = 0.1;
    double max_grad_norm = 1.0;          // 0: no clipping
    std::int64_t max_skipped_steps = 0;  // steps without an update that do not end the run
    std::uint64_t seed = 1;
    LossWeights loss_weights = LossWeights::kToken;
  };
  struct Checkpoint {
    std::string dir;              // empty: no checkpoints
    std::int64_t interval = 100;  // steps; 0: after the last step alone
    std::int64_t keep = 2;        // 0: all
    bool resume = false;
  };
  struct Output {
    bool dry_run = false;
    std::string metrics;                   // JSON lines; empty: none
    std::int64_t validation_interval = 0;  // steps; 0: at the end alone
    std::string tensorboard;               // folder of event files; empty: none
    std::optional<StepRange> profile_steps;
    std::string profile;    // empty: kDefaultTrace, where profile_steps is set
    std::string export_hf;  // where the trained model goes in Hugging Face's form; empty: nowhere
    std::optional<Dtype> export_dtype;  // of its parameters; the model's own unless bf16
    std::string prompt = "And God said, ";
    std::int64_t sample_bytes = 500;
    double temperature = 0.7;
    std::int64_t log_every = 1;
    LogLevel log_level = LogLevel::kInfo;
  };

  Data data;
  Model model;
  Balance balance;
  Parallel parallel;
  Memory memory;
  Optim optim;
  Checkpoint checkpoint;
  Output output;
  std::vector<std::string> command;  // as the program was called; recorded, but not an option

  /// Throws UsageError `--<option>: ...` where options conflict with each other or with the model.
  void validate() const;
  /// This configuration with all values filled in whose defaults depend on others: token_dtype,
  /// settings, warmup, wire_dtype, reduce_dtype, layout, expert_weights.
  TrainConfig resolved() const;

  /// Gives the coefficients of `balance` that are not set the values of the model, so that records
  /// and checkpoints have them.
  void fill_in_balance();

  models::CausalLMConfig model_config() const;
  /// How the layers are sharded. shard_model() adapts it for the root.
  fsdp::Policy policy() const;
  /// How the ranks divide the model.
  ParallelDims parallel_dims() const;
  /// Tokens of a step; with packed documents, the largest possible number.
  std::int64_t tokens_per_step() const;
};

/// What `warmup` is unless given depends on the schedule.
std::int64_t warmup_steps(const TrainConfig::Optim& config);
optim::Schedule schedule_of(const TrainConfig::Optim& config);

/// Where the trace of profile_steps goes unless `profile` says otherwise.
inline constexpr const char* kDefaultTrace = "trace.json";

}  // namespace moegrad::training
