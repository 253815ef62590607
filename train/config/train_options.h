// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/qwen3_moe/config.h"

namespace moegrad::training {

/// Where --profile-steps writes unless --profile says otherwise.
inline constexpr const char* kDefaultTrace = "trace.json";

/// Everything a training run depends on; defaults train the "small" preset in one to two minutes.
struct TrainOptions {
  std::string text;                             // empty: the King James text
  std::string data;                             // a tokenized file instead of a text
  std::string data_dtype = "uint16";            // uint16 | uint32
  std::optional<std::int64_t> end_of_document;  // id that ends the documents of `data`
  bool pack = false;  // whole documents, up to batch * sequence_length tokens per micro-batch
  std::string preset = "small";
  std::string config;     // a config.json instead of a preset
  std::string hf_model;   // a folder of Hugging Face's: its config.json and weights to start from
  std::string export_hf;  // where the trained model goes in that form; empty: nowhere
  bool overfit = false;   // the first step's batches in every step
  bool dry_run = false;
  int world_size = 2;
  int threads_per_rank = 1;
  std::int64_t collective_deadline = 60;  // seconds, LaunchOptions::deadline
  std::int64_t steps = 500;
  std::int64_t micro_batches = 2;  // per step, over all ranks
  std::int64_t batch = 8;          // sequences per micro-batch
  std::int64_t sequence_length = 128;
  double lr = 4e-3;
  std::string schedule = "cosine";     // constant | cosine | wsd
  std::optional<std::int64_t> warmup;  // by default a tenth of the steps, at most 40
  double weight_decay = 0.1;
  double max_grad_norm = 1.0;
  std::uint64_t seed = 1;

  bool grouped_matmul_nz_transpose = true;
  bool linear_only_shard = false;
  std::string layout;               // nz | nd; empty: what grouped_matmul_nz_transpose says
  std::string expert_weights;       // pretransposed | hf; likewise
  std::string dtype = "fp32";       // fp32 | fp64
  std::string wire_dtype;           // bf16, or empty for the model's own
  std::string reduce_dtype;         // likewise
  std::string reshard = "default";  // default | true | false: after forward
  int prefetch = 1;
  std::int64_t recompute_layers = 0;
  bool linear_cross_entropy = false;

  std::string checkpoint_dir;              // empty: no checkpoints
  std::int64_t checkpoint_interval = 100;  // steps; 0: after the last step alone
  std::int64_t checkpoint_keep = 2;        // 0: all
  bool resume = false;

  std::string metrics;                   // JSON lines; empty: none
  std::int64_t validation_interval = 0;  // steps; 0: at the end alone
  std::string tensorboard;               // folder of event files; empty: none
  std::string profile_steps;             // a:b, or empty
  std::string profile;                   // empty: trace.json
  std::string prompt = "And God said, ";
  std::int64_t sample_bytes = 500;
  double temperature = 0.7;
  std::int64_t validation_sequences = 256;
  std::int64_t log_every = 1;
  std::string log_level = "info";
  std::vector<std::string> command;  // as the program was called; recorded, and no more than that

  /// ValueError if a product of options is more than can be in memory.
  void check_sizes() const;
  std::int64_t warmup_steps() const;
  /// Of packed documents, at most.
  std::int64_t tokens_per_step() const { return micro_batches * batch * sequence_length; }
  /// The model's configuration with the layout switches applied. ValueError where they conflict.
  models::Qwen3MoeConfig model_config() const;
  /// One `name value` line per option, as they will be used.
  std::string to_string() const;
};

/// Parses the command line; prints help or what is wrong and returns the exit code when the
/// program should end.
std::optional<int> parse_train_options(int argc, char** argv, TrainOptions& options);

}  // namespace moegrad::training
