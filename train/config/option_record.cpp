// SPDX-License-Identifier: Apache-2.0
#include "train/config/option_record.h"

#include <concepts>
#include <optional>
#include <sstream>

namespace moegrad::training {
namespace {

std::string text_of(bool value) { return value ? "true" : "false"; }
std::string text_of(std::integral auto value) { return std::to_string(value); }

std::string text_of(double value) {
  std::ostringstream out;
  out.precision(17);
  out << value;
  return out.str();
}

template <class T>
std::string text_of(const std::optional<T>& value) {
  return value ? text_of(*value) : "none";
}

}  // namespace

std::map<std::string, std::string> record_options(const TrainOptions& options) {
  // All members in their order: their number is checked by the compiler.
  const auto& [text, data, data_dtype, end_of_document, pack, preset, config, hf_model, export_hf,
               overfit, dry_run, world_size, threads_per_rank, collective_deadline, steps,
               micro_batches, batch, sequence_length, lr, schedule, warmup, weight_decay,
               max_grad_norm, seed, grouped_matmul_nz_transpose, linear_only_shard, layout,
               expert_weights, dtype, wire_dtype, reduce_dtype, reshard, prefetch, recompute_layers,
               linear_cross_entropy, checkpoint_dir, checkpoint_interval, checkpoint_keep, resume,
               metrics, validation_interval, tensorboard, profile_steps, profile, prompt,
               sample_bytes, temperature, validation_sequences, log_every, log_level,
               command] = options;  // the command is no option
  // Options that have a default of their own are recorded as what they come to.
  const bool pretransposed =
      expert_weights.empty() ? grouped_matmul_nz_transpose : expert_weights == "pretransposed";
  return {{"text", text},
          {"data", data},
          {"data_dtype", data_dtype},
          {"end_of_document", text_of(end_of_document)},
          {"pack", text_of(pack)},
          {"preset", preset},
          {"config", config},
          {"hf_model", hf_model},
          {"export_hf", export_hf},
          {"overfit", text_of(overfit)},
          {"dry_run", text_of(dry_run)},
          {"world_size", text_of(world_size)},
          {"threads_per_rank", text_of(threads_per_rank)},
          {"collective_deadline", text_of(collective_deadline)},
          {"steps", text_of(steps)},
          {"micro_batches", text_of(micro_batches)},
          {"batch", text_of(batch)},
          {"seq_len", text_of(sequence_length)},
          {"lr", text_of(lr)},
          {"schedule", schedule},
          {"warmup", text_of(warmup.value_or(options.warmup_steps()))},
          {"weight_decay", text_of(weight_decay)},
          {"max_grad_norm", text_of(max_grad_norm)},
          {"seed", text_of(seed)},
          {"grouped_matmul_nz_transpose", text_of(grouped_matmul_nz_transpose)},
          {"linear_only_shard", text_of(linear_only_shard)},
          {"layout", layout},
          {"expert_weights", pretransposed ? "pretransposed" : "hf"},
          {"dtype", dtype},
          {"wire_dtype", wire_dtype.empty() ? dtype : wire_dtype},
          {"reduce_dtype", reduce_dtype.empty() ? dtype : reduce_dtype},
          {"reshard", reshard},
          {"prefetch", text_of(prefetch)},
          {"recompute_layers", text_of(recompute_layers)},
          {"linear_cross_entropy", text_of(linear_cross_entropy)},
          {"checkpoint_dir", checkpoint_dir},
          {"checkpoint_interval", text_of(checkpoint_interval)},
          {"checkpoint_keep", text_of(checkpoint_keep)},
          {"resume", text_of(resume)},
          {"metrics", metrics},
          {"validation_interval", text_of(validation_interval)},
          {"tensorboard", tensorboard},
          {"profile_steps", profile_steps},
          {"profile", profile},
          {"prompt", prompt},
          {"sample_bytes", text_of(sample_bytes)},
          {"temperature", text_of(temperature)},
          {"validation_sequences", text_of(validation_sequences)},
          {"log_every", text_of(log_every)},
          {"log_level", log_level}};
}

std::map<std::string, std::string> compared_options(const TrainOptions& options) {
  auto record = record_options(options);
  for (const auto& option : kUncomparedOptions) record.erase(std::string(option.name));
  return record;
}

}  // namespace moegrad::training
