// SPDX-License-Identifier: Apache-2.0
#include "train/training_run.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <iomanip>
#include <iostream>
#include <optional>
#include <span>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/autograd/anomaly.h"
#include "framework/distributed/collectives.h"
#include "framework/distributed/launch.h"
#include "framework/distributed/slow_rank_watch.h"
#include "framework/distributed/slow_storage.h"
#include "framework/io/checkpoint_folders.h"
#include "framework/io/folder_lock.h"
#include "framework/runtime/log.h"
#include "framework/tensor/meta.h"
#include "models/qwen3_moe/load_pretrained.h"
#include "models/qwen3_moe/save_pretrained.h"
#include "optim/schedule.h"
#include "train/logs/run_logs.h"
#include "train/run_checkpoints.h"
#include "train/trainer.h"

namespace moegrad::training {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

LogLevel log_level(const std::string& name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "warning") return LogLevel::kWarning;
  return name == "error" ? LogLevel::kError : LogLevel::kInfo;
}

optim::Schedule schedule_of(const TrainOptions& options) {
  if (options.schedule != "cosine") {
    const auto decay = options.schedule == "wsd" ? options.steps / 5 : 0;
    return optim::warmup_stable_decay(options.lr, options.warmup_steps(),
                                      options.steps - options.warmup_steps() - decay, decay);
  }
  return optim::cosine_with_warmup(options.lr, options.warmup_steps(), options.steps);
}

std::int64_t count_tokens(const std::vector<MicroBatch>& batches) {
  std::int64_t tokens = 0;
  for (const auto& batch : batches) tokens += batch.tokens.numel();
  return tokens;
}

// What is decided after each step: rank 0's answers, so that all ranks do the same.
struct StepEnd {
  bool stop = false;
  bool window_ends = false;  // in which the ranks are compared
};

StepEnd agree_on_step_end(const TrainingEvents& events, RankContext& context,
                          Clock::time_point window_begin) {
  std::vector<std::int64_t> answers(2);
  if (context.rank() == 0) {
    answers = {events.stop_requested() ? 1 : 0,
               Clock::now() - window_begin >= events.slow_rank_window ? 1 : 0};
  }
  broadcast(*context.group(), std::span(answers), 0, {.label = "end of a step"});
  return {.stop = answers[0] != 0, .window_ends = answers[1] != 0};
}

void warn_of_slow_ranks(const std::vector<SlowRank>& ranks, RunLogs& logs, bool speaks) {
  if (ranks.empty() || !speaks) return;
  logs.end_line();
  for (const auto& slow : ranks) {
    std::ostringstream text;
    text << std::fixed << std::setprecision(2) << "rank " << slow.rank << " is slow in "
         << to_string(slow.what) << ": it has worked " << slow.ratio
         << " times as long as the median of the others";
    log(LogLevel::kWarning, text.str());
  }
}

// Thrown on all ranks, which have agreed to stop and have saved what they had.
struct Stopped {
  int exit_code;  // of run_training()
};

// What a loss is per.
std::string_view unit_of(const TrainingData& data) {
  return data.source().is_text() ? "byte" : "token";
}

void print_result(const TrainOptions& options, const TrainingData& data, models::Qwen3Moe& model,
                  RunLogs& logs, bool speaks, const std::function<void()>& may_stop) {
  model.eval();
  const double validation = evaluate(model, data, may_stop);
  const auto& tokens = data.source();
  logs.validation(options.steps, validation, unit_of(data));
  // Only bytes can be written out.
  if (!tokens.is_text() || options.sample_bytes == 0) return;
  const auto text = sample(model, options.prompt, options.sample_bytes, options.sequence_length,
                           options.temperature, options.seed, may_stop);
  if (!speaks) return;
  std::cout << "sample: " << options.prompt << text << '\n'
            << "words of the sample that stand in the text: "
            << 100 * known_words(text, tokens.as_text()) << " %" << std::endl;
}

// Throws, naming the op that made the first NaN or infinity where one did: the step changed
// nothing, so it comes to the same again.
template <class Step>
[[noreturn]] void stop_at_non_finite(std::int64_t number, const StepResult& result,
                                     const Step& step) {
  std::ostringstream what;
  what << "step " << number << ": loss and gradient norm must be finite, got " << result.loss
       << " and " << result.grad_norm;
  try {
    const AnomalyModeGuard look_at_every_op;
    step();
  } catch (const AnomalyError& error) {
    throw Error(what.str() + "; " + error.what());
  }
  throw Error(what.str() + "; no op made it, but the sum of what ranks made");
}

// Runs on every rank; false if a checkpoint or a part of the logs could not be written.
// Throws Stopped.
bool train(const TrainOptions& options, const TrainingData& data, const TrainingEvents& events,
           StepProfile& profile, const FolderLock* lock, RankContext& context) {
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
  if (options.hf_model.empty()) {
    model.init_weights(options.seed);
  } else {
    models::load_pretrained(model, options.hf_model);
  }
  optim::AdamW optimizer(decay_matrices(model.named_parameters(), options.lr, options.weight_decay),
                         {.beta1 = 0.9, .beta2 = 0.95});
  const auto observe = [&](CheckpointPoint point) {
    if (events.at_checkpoint_point) events.at_checkpoint_point(context.rank(), point);
  };
  RunCheckpoints checkpoints(options, data, context, model, optimizer, lock, observe);
  const auto first = checkpoints.resume();
  auto logs = [&] {
    const SlowStorage storage("opening the logs");
    return RunLogs(options, context, profile, first,
                   run_header(options, unit_of(data), checkpoints.run()));
  }();
  const auto schedule = schedule_of(options);
  std::int64_t done = first;  // steps
  auto window_begin = Clock::now();
  const auto stop_here = [&] {
    if (done > first) checkpoints.after_step(done, /*last=*/true);
    logs.end_line();
    const bool written = logs.report(), saved = checkpoints.finish();
    if (speaks && done > 0) std::cout << "stopped after step " << done - 1 << std::endl;
    if (speaks && done == 0) std::cout << "stopped before the first step" << std::endl;
    throw Stopped{saved && written ? kRunStopped : 1};
  };
  const auto may_stop = [&] {
    if (agree_on_step_end(events, context, window_begin).stop) stop_here();
  };
  const double before = evaluate(model, data, may_stop);
  if (speaks) std::cout << "training, from validation loss " << before << std::endl;
  if (logs.validation_due(first)) logs.validation(first, before, unit_of(data));

  SlowRankWatch watch(context);
  window_begin = Clock::now();
  for (std::int64_t step = first; step < options.steps; ++step) {
    logs.begin_step(step);
    const auto start = Clock::now();
    optimizer.set_lr(schedule(step));
    const auto batches = [&] {
      const SlowStorage storage("reading the batches of step " + std::to_string(step));
      const WorkGuard work(WorkClass::kData);
      return data.step_batches(options.overfit ? 0 : step);
    }();
    const auto data_seconds = seconds_since(start);
    const auto run_step = [&] {
      const WorkGuard work(WorkClass::kCompute);
      return train_step(model, state, batches,
                        {.max_grad_norm = options.max_grad_norm,
                         .recompute_layers = options.recompute_layers,
                         .linear_cross_entropy = options.linear_cross_entropy},
                        optimizer);
    };
    auto result = run_step();
    if (!result.is_finite()) stop_at_non_finite(step, result, run_step);
    done = step + 1;
    logs.end_step({.step = step,
                   .lr = schedule(step),
                   .seconds = seconds_since(start),
                   .data_seconds = data_seconds,
                   .tokens = count_tokens(batches),
                   .world_size = options.world_size,
                   .result = std::move(result)});
    if (logs.validation_due(step + 1)) {
      logs.validation(step + 1, evaluate(model, data, may_stop), unit_of(data));
    }
    const auto [stop, window_ends] = agree_on_step_end(events, context, window_begin);
    if (window_ends) {
      warn_of_slow_ranks(watch.close_window(), logs, speaks);
      window_begin = Clock::now();
    }
    if (stop && step + 1 < options.steps) stop_here();
    checkpoints.after_step(step + 1, step + 1 == options.steps);
  }
  logs.end_line();
  print_result(options, data, model, logs, speaks, may_stop);
  if (!options.export_hf.empty()) models::save_pretrained(model, options.export_hf);
  const bool written = logs.report();
  return checkpoints.finish() && written;
}

}  // namespace

fsdp::Policy policy_of(const TrainOptions& options) {
  fsdp::Policy policy;
  if (options.reshard != "default") policy.reshard_after_forward = options.reshard == "true";
  policy.linear_only_shard = options.linear_only_shard;
  policy.forward_prefetch = options.prefetch;
  if (!options.wire_dtype.empty()) policy.mixed_precision.param_dtype = Dtype::kBFloat16;
  if (!options.reduce_dtype.empty()) policy.mixed_precision.reduce_dtype = Dtype::kBFloat16;
  return policy;
}

int run_training(const TrainOptions& options, const TrainingData& data,
                 const TrainingEvents& events) {
  const auto start = Clock::now();
  std::optional<FolderLock> lock;
  if (!options.checkpoint_dir.empty()) {
    lock.emplace(options.checkpoint_dir);
    remove_leftovers(options.checkpoint_dir);
  }
  std::atomic<int> code = 0;  // 1 if any rank has it
  StepProfile profile(options);
  launch(options.world_size,
         [&](RankContext& context) {
           context.set_log_level(log_level(options.log_level));
           try {
             if (!train(options, data, events, profile, lock ? &*lock : nullptr, context)) code = 1;
           } catch (const Stopped& stopped) {
             if (code != 1) code = stopped.exit_code;
           }
         },
         {.threads_per_rank = options.threads_per_rank,
          .deadline = std::chrono::seconds(options.collective_deadline),
          .exit_after = std::chrono::seconds(options.collective_deadline),
          .link = events.link});
  std::cout << "took " << seconds_since(start) << " s" << std::endl;
  return code;
}

}  // namespace moegrad::training
