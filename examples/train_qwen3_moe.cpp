// SPDX-License-Identifier: Apache-2.0

// Trains a small Qwen3-MoE on a text over fully sharded ranks:
//
//     build/release/examples/train_qwen3_moe                       the King James text, 2 ranks
//     build/release/examples/train_qwen3_moe --text FILE --world-size 4 --micro-batches 4
//
// The losses depend on the seed and the step alone, not on world size, threads or weight layout.

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <optional>

#include "examples/metrics.h"
#include "examples/train_options.h"
#include "examples/trainer.h"
#include "framework/distributed/launch.h"
#include "framework/runtime/error.h"
#include "framework/runtime/log.h"
#include "framework/tensor/meta.h"
#include "optim/schedule.h"

namespace moegrad::examples {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The names of the original switches, read once, here alone, as defaults of the flags.
void read_switch(const char* name, bool& value) {
  const char* text = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): before any thread
  if (text == nullptr) return;
  value = std::string_view(text) == "1";
  std::cout << "environment: " << name << "=" << text << " taken as " << (value ? "on" : "off")
            << '\n';
}

LogLevel log_level(const std::string& name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "warning") return LogLevel::kWarning;
  return name == "error" ? LogLevel::kError : LogLevel::kInfo;
}

fsdp::Policy policy_of(const TrainOptions& options) {
  fsdp::Policy policy;
  if (options.reshard != "default") policy.reshard_after_forward = options.reshard == "true";
  policy.linear_only_shard = options.linear_only_shard;
  policy.forward_prefetch = options.prefetch;
  if (!options.wire_dtype.empty()) policy.mixed_precision.param_dtype = Dtype::kBFloat16;
  if (!options.reduce_dtype.empty()) policy.mixed_precision.reduce_dtype = Dtype::kBFloat16;
  return policy;
}

optim::Schedule schedule_of(const TrainOptions& options) {
  if (options.schedule == "constant") return optim::constant(options.lr);
  if (options.schedule == "wsd") {
    const auto decay = options.steps / 5;
    return optim::warmup_stable_decay(options.lr, options.warmup_steps(),
                                      options.steps - options.warmup_steps() - decay, decay);
  }
  return optim::cosine_with_warmup(options.lr, options.warmup_steps(), options.steps);
}

// Runs on every rank.
void train(const TrainOptions& options, const TextData& data, RankContext& context) {
  const bool speaks = context.rank() == 0;
  // The model never stands whole on any rank: shapes alone, then shards, then their values.
  std::optional<models::Qwen3Moe> shapes;
  {
    const MetaGuard no_bytes;
    shapes.emplace(options.model_config());
  }
  auto& model = *shapes;
  auto& state = shard_model(model, DeviceMesh::flat(context.group()), policy_of(options));
  model.to_empty();
  model.init_weights(options.seed);
  optim::AdamW optimizer(decay_matrices(model.named_parameters(), options.lr, options.weight_decay),
                         {.beta1 = 0.9, .beta2 = 0.95});
  const auto schedule = schedule_of(options);
  MetricsFile metrics(speaks ? options.metrics : "");
  const double untrained = evaluate(model, data, options.validation_sequences, options.batch);
  if (speaks) std::cout << "training, from validation loss " << untrained << std::endl;

  for (std::int64_t step = 0; step < options.steps; ++step) {
    const auto start = Clock::now();
    std::vector<MicroBatch> batches;
    for (std::int64_t i = 0; i < options.micro_batches; ++i) {
      batches.push_back(
          data.training_batch(options.seed, step, i, options.micro_batches, options.batch));
    }
    optimizer.set_lr(schedule(step));
    const auto result = train_step(model, state, batches,
                                   {.max_grad_norm = options.max_grad_norm,
                                    .recompute_layers = options.recompute_layers,
                                    .linear_cross_entropy = options.linear_cross_entropy},
                                   optimizer);
    if (!speaks) continue;
    const StepReport report = {
        .step = step,
        .lr = schedule(step),
        .seconds = seconds_since(start),
        .tokens = options.micro_batches * options.batch * options.sequence_length,
        .world_size = options.world_size,
        .result = result};
    metrics.write(report);
    if (step % options.log_every == 0 || step + 1 == options.steps) {
      std::cout << to_string(report) << std::endl;
    }
  }

  model.eval();
  const double validation = evaluate(model, data, options.validation_sequences, options.batch);
  const auto text = sample(model, options.prompt, options.sample_bytes, options.sequence_length,
                           options.temperature, options.seed);
  if (!speaks) return;
  metrics.write_validation(options.steps, validation);
  std::cout << "validation loss " << validation << " nats per byte\n"
            << "sample: " << options.prompt << text << '\n'
            << "words of the sample that stand in the text: "
            << 100 * known_words(text, data.text()) << " %" << std::endl;
}

int run(int argc, char** argv) {
  TrainOptions options;
  read_switch("GROUPED_MATMUL_NZ_TRANSPOSE", options.grouped_matmul_nz_transpose);
  read_switch("LINEAR_ONLY_SHARD", options.linear_only_shard);
  if (const auto exit_code = parse_train_options(argc, argv, options)) return *exit_code;
  const auto configuration = options.to_string();
  std::cout << "configuration\n" << configuration << std::flush;
  const TextData data(options.text, options.sequence_length);
  const auto start = Clock::now();
  launch(options.world_size,
         [&](RankContext& context) {
           context.set_log_level(log_level(options.log_level));
           train(options, data, context);
         },
         {.threads_per_rank = options.threads_per_rank});
  std::cout << "took " << seconds_since(start) << " s" << std::endl;
  return 0;
}

}  // namespace
}  // namespace moegrad::examples

int main(int argc, char** argv) {
  try {
    return moegrad::examples::run(argc, argv);
  } catch (const moegrad::Error& error) {
    std::cerr << "train_qwen3_moe: " << error.what() << '\n';
    return 1;
  }
}
