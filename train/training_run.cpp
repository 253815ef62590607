// SPDX-License-Identifier: Apache-2.0
#include "train/training_run.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iomanip>
#include <iostream>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/autograd/anomaly.h"
#include "framework/distributed/collectives.h"
#include "framework/distributed/mpi/launch_mpi.h"
#include "framework/distributed/slow_rank_watch.h"
#include "framework/distributed/slow_storage.h"
#include "framework/io/atomic_file.h"
#include "framework/io/same_files.h"
#include "framework/runtime/log.h"
#include "framework/runtime/mpi_environment.h"
#include "framework/tensor/meta.h"
#include "models/causal_lm/load_pretrained.h"
#include "models/causal_lm/save_pretrained.h"
#include "models/hf_checkpoint.h"
#include "train/config/train_options.h"
#include "train/data/step_loader.h"
#include "train/evaluate.h"
#include "train/logs/run_logs.h"
#include "train/optimizers.h"
#include "train/run_identity.h"
#include "train/sample.h"
#include "train/train_checkpoints.h"
#include "train/train_step.h"

namespace moegrad::training {
namespace {

using Clock = std::chrono::steady_clock;

// The tokens that a run has seen when it has saved; checkpoint_tool reads it.
constexpr const char* kTokens = "tokens";

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// What is decided after each step, the same on all ranks.
struct StepEnd {
  int stop = 0;              // what stop_requested has returned on a rank
  bool window_ends = false;  // in which the ranks are compared
};

StepEnd agree_on_step_end(const TrainingEvents& events, RankContext& context,
                          Clock::time_point window_begin) {
  std::vector<std::int64_t> answers(2);
  if (context.rank() == 0 || mpi_environment()) answers[0] = events.stop_requested();
  if (context.rank() == 0) {
    answers[1] = Clock::now() - window_begin >= events.slow_rank_window ? 1 : 0;
  }
  all_reduce(*context.group(), std::span(answers), ReduceOp::kMax, {.label = "end of a step"});
  return {.stop = static_cast<int>(answers[0]), .window_ends = answers[1] != 0};
}

void warn_of_slow_ranks(const std::vector<SlowRank>& ranks, RunLogs& logs, bool is_rank_0) {
  if (ranks.empty() || !is_rank_0) return;
  logs.end_line();
  for (const auto& slow : ranks) {
    std::ostringstream text;
    text << std::fixed << std::setprecision(2) << "rank " << slow.rank << " is slow in "
         << to_string(slow.what) << ": it has worked " << slow.ratio
         << " times as long as the median of the others";
    log(LogLevel::kWarning, text.str());
  }
}

std::string non_finite_text(std::int64_t number, const StepResult& result) {
  std::ostringstream what;
  what << "step " << number << ": loss and gradient norm must be finite, got " << result.loss
       << " and " << result.grad_norm;
  return what.str();
}

void warn_of_skipped_step(std::int64_t number, const StepResult& result, RunLogs& logs) {
  logs.end_line();
  log(LogLevel::kWarning, non_finite_text(number, result) + "; its update is left out");
}

// Thrown on all ranks after they have agreed to stop and have saved a checkpoint.
struct Stopped {
  int exit_code;  // of run_training()
};

// With the other files of the model that the run has begun from.
models::SavePretrainedOptions export_options(const TrainConfig& options) {
  return {.dtype = options.output.export_dtype, .copy_from = options.model.hf_model};
}

// The unit that a loss is divided by.
std::string_view unit_of(const TrainingData& data) {
  return data.source().is_text() ? "byte" : "token";
}

void print_result(const TrainConfig& options, const TrainingData& data, models::CausalLM& model,
                  const fsdp::GroupRanks& ranks, RunLogs& logs, bool is_rank_0,
                  const std::function<void()>& may_stop) {
  model.eval();
  const double validation = evaluate(model, data, ranks, may_stop);
  const auto& tokens = data.source();
  logs.validation(options.optim.steps, validation, unit_of(data));
  // Only a model of bytes can produce text.
  if (!tokens.is_text() || options.output.sample_bytes == 0) return;
  const auto text = sample(model, options.output.prompt, options.output.sample_bytes,
                           options.data.sequence_length, options.output.temperature,
                           options.optim.seed, ranks, may_stop);
  if (!is_rank_0) return;
  std::cout << "sample: " << options.output.prompt << text << '\n'
            << "words of the sample that occur in the text: "
            << 100 * known_words(text, tokens.as_text()) << " %" << std::endl;
}

// Throws an error that names the op which made the first NaN or infinity. It runs the step again:
// the step changed nothing, so it gives the same result.
template <class Step>
[[noreturn]] void stop_at_non_finite(std::int64_t number, const StepResult& result,
                                     const Step& step) {
  const auto what = non_finite_text(number, result);
  try {
    const AnomalyModeGuard look_at_every_op;
    step();
  } catch (const AnomalyError& error) {
    throw Error(what + "; " + error.what());
  }
  throw Error(what + "; no op made it, but the sum of what ranks made");
}

// Each rank reads its own part of the weights, so no later comparison would show that the ranks
// have different ones.
void check_same_weights(const std::shared_ptr<ProcessGroup>& group, const std::string& path) {
  const SlowStorage storage("reading " + path);
  const models::HfCheckpoint checkpoint(path);
  std::set<std::filesystem::path> files = {checkpoint.path()};
  for (const auto& [name, tensor] : checkpoint.tensors()) files.insert(tensor.file->path());
  check_same_files("--hf-model", group, {files.begin(), files.end()});
}

void check_vocabulary(const TokenSource& tokens, const models::CausalLMConfig& model) {
  check<ValueError>(!tokens.is_text() || model.vocab_size == tokens.vocab_size(),
                    "training: the bytes of a text need a model with a vocab_size of ",
                    tokens.vocab_size(), ", got ", model.vocab_size);
  check<ValueError>(tokens.vocab_size() <= model.vocab_size, "training: '", tokens.name(),
                    "' must have ids of the model's vocab_size ", model.vocab_size,
                    ", got ids of a vocab_size of ", tokens.vocab_size());
}

// Runs on every rank; false if a checkpoint or a part of the logs could not be written.
// Throws Stopped.
bool train(const TrainConfig& options, const TrainingData& data, const TrainingEvents& events,
           RankContext& context) {
  const bool is_rank_0 = context.rank() == 0;
  check_same_run(context.group(), options, data);
  // No rank ever holds the whole model: first only shapes are made, then shards, then their values.
  std::optional<models::CausalLM> shapes;
  {
    const MetaGuard no_bytes;
    shapes.emplace(options.model_config());
  }
  auto& model = *shapes;
  recompute_layers(model, options.memory.recompute_layers);
  const auto dims = options.parallel_dims();
  const auto meshes = make_meshes(context.group(), dims);
  auto& state = shard_model(model, meshes, options.policy());
  model.to_empty();
  if (options.model.hf_model.empty()) {
    model.init_weights(options.optim.seed);
  } else {
    check_same_weights(context.group(), options.model.hf_model);
    models::load_pretrained(model, options.model.hf_model);
  }
  const auto made = make_optimizer(model, options.optim);
  auto& optimizer = *made;
  const auto observe = [&](CheckpointPoint point) {
    if (events.at_checkpoint_point) events.at_checkpoint_point(context.rank(), point);
  };
  const auto run = describe_run(options, data);
  TrainState trained{model, optimizer};
  TrainCheckpoints checkpoints(
      options.checkpoint.dir, trained,
      {.interval = options.checkpoint.interval,
       .keep = options.checkpoint.keep,
       .run = run,
       .formerly = former_options(),
       .same_so_far =
           [&options](const std::string& name, const std::string& saved, std::int64_t step) {
             return name == "steps" && same_first_steps(options, saved, step);
           },
       .values =
           [&data](std::int64_t steps) {
             return std::map<std::string, std::string>{
                 {kTokens, std::to_string(data.tokens_before(steps))}};
           },
       .resume = options.checkpoint.resume,
       .observe = observe});
  const auto resumed = checkpoints.resume();
  if (is_rank_0 && options.checkpoint.resume) {
    if (resumed) {
      std::cout << "resumed from " << resumed->folder.string() << ", saved by "
                << resumed->world_size << " ranks" << std::endl;
    } else {
      std::cout << "no checkpoint yet, from step 0" << std::endl;
    }
  }
  const auto idle = fsdp::idle_ranks(data.micro_batches(), fsdp::GridPosition::of(state.ranks()),
                                     fsdp::accumulation_on(dims));
  if (is_rank_0 && idle > 0) {
    std::cout << idle << " of " << context.world_size()
              << " ranks run no micro-batch: --micro-batches is " << data.micro_batches()
              << std::endl;
  }
  const auto first = trained.step;
  StepProfile profile(options);
  auto logs = [&] {
    const SlowStorage storage("opening the logs");
    if (is_rank_0) profile.open(first);
    return RunLogs(options, context, profile, first, run_header(options, unit_of(data), run));
  }();
  const auto schedule = options.schedule();
  auto window_begin = Clock::now();
  const auto stop_here = [&](int reason) {
    if (trained.step > first) checkpoints.save();
    logs.end_line();
    const bool written = logs.report(), saved = checkpoints.finish();
    if (is_rank_0 && trained.step > 0) {
      std::cout << "stopped after step " << trained.step - 1 << std::endl;
    }
    if (is_rank_0 && trained.step == 0) std::cout << "stopped before the first step" << std::endl;
    throw Stopped{saved && written ? -reason : 1};
  };
  const auto may_stop = [&] {
    const int stop = agree_on_step_end(events, context, window_begin).stop;
    if (stop != 0) stop_here(stop);
  };
  const double before = evaluate(model, data, state.ranks(), may_stop);
  if (is_rank_0) std::cout << "training, from validation loss " << before << std::endl;
  logs.first_validation(first, before, unit_of(data));

  fsdp::StepPlan plan(state, data.micro_batches(), fsdp::accumulation_on(dims));
  StepLoader loader(data, plan.indices());
  SlowRankWatch watch(context, meshes.stage,
                      fsdp::ranks_compute_equally(dims, data.micro_batches()));
  window_begin = Clock::now();
  for (std::int64_t step = first; step < options.optim.steps; ++step) {
    logs.begin_step(step);
    const auto start = Clock::now();
    optimizer.set_lr(schedule(step));
    const auto batches = loader.batches(step);
    const auto data_seconds = seconds_since(start);
    const auto run_step = [&] {
      const WorkGuard work(WorkClass::kCompute);
      return train_step(model, plan, batches,
                        {.max_grad_norm = options.optim.max_grad_norm,
                         .balance = options.balance,
                         .seed = options.optim.seed,
                         .step = step,
                         .linear_cross_entropy = options.memory.linear_cross_entropy},
                        optimizer);
    };
    auto result = run_step();
    if (!result.is_finite()) {
      if (trained.skipped_steps >= options.optim.max_skipped_steps) {
        if (step > first) checkpoints.save();
        checkpoints.finish();
        stop_at_non_finite(step, result, run_step);
      }
      ++trained.skipped_steps;
      if (is_rank_0) warn_of_skipped_step(step, result, logs);
    }
    trained.step = step + 1;
    logs.end_step({.step = step,
                   .lr = schedule(step),
                   .seconds = seconds_since(start),
                   .data_seconds = data_seconds,
                   .tokens = result.tokens,
                   .world_size = options.parallel.world_size,
                   .skipped_steps = trained.skipped_steps,
                   .result = std::move(result)});
    if (logs.validation_due(step + 1)) {
      logs.validation(step + 1, evaluate(model, data, state.ranks(), may_stop), unit_of(data));
    }
    const auto [stop, window_ends] = agree_on_step_end(events, context, window_begin);
    if (window_ends) {
      warn_of_slow_ranks(watch.close_window(), logs, is_rank_0);
      window_begin = Clock::now();
    }
    if (stop != 0 && step + 1 < options.optim.steps) stop_here(stop);
    if (trained.step == options.optim.steps) checkpoints.save();
    checkpoints.after_step();
  }
  logs.end_line();
  logs.recent_loads();
  print_result(options, data, model, state.ranks(), logs, is_rank_0, may_stop);
  if (!options.output.export_hf.empty()) {
    models::save_pretrained(model, options.output.export_hf, export_options(options));
  }
  const bool written = logs.report();
  return checkpoints.finish() && written;
}

// Before there is a model to export.
void check_export(const TrainConfig& options) {
  try {
    models::check_export_folder(options.output.export_hf, export_options(options));
  } catch (const Error& error) {
    throw ValueError("--export-hf: " + std::string(error.what()));
  }
}

// Creates the folder that an option names, if any, and tries to write to it. What keeps files out
// of it would else show later, and without the option's name.
void check_output_folder(const std::string& option, const std::string& folder) {
  if (folder.empty()) return;
  const auto message = option + ": cannot write to " + folder + ": ";
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  check(!failure, message, failure.message());
  try {
    AtomicFile(std::filesystem::path(folder) / ".moegrad");  // never committed
  } catch (const FileError& error) {
    throw Error(message + error.reason());
  }
}

}  // namespace

int run_training(const TrainConfig& options, const TrainingData& data,
                 const TrainingEvents& events) {
  const auto start = Clock::now();
  check_vocabulary(data.source(), options.model_config());
  check_output_folder("--checkpoint-dir", options.checkpoint.dir);
  check_output_folder("--tensorboard", options.output.tensorboard);
  check_export(options);
  check_output_folder("--export-hf", options.output.export_hf);
  std::atomic<int> code = 0;
  MpiOptions launch_options;
  launch_options.threads_per_rank = options.parallel.threads_per_rank;
  launch_options.deadline = std::chrono::seconds(options.parallel.collective_deadline);
  launch_options.exit_after = launch_options.deadline;
  launch_options.link = events.link;
  launch_options.last_operations_folder = options.checkpoint.dir;
  launch_ranks(
      options.parallel.world_size,
      [&](RankContext& context) {
        context.set_log_level(options.output.log_level);
        std::int64_t own = 0;
        try {
          if (!train(options, data, events, context)) own = 1;
        } catch (const Stopped& stopped) {
          own = stopped.exit_code;
        }
        // 1 if any rank has it; all have been stopped by the same.
        const auto failed = all_reduce<std::int64_t>(*context.group(), own == 1 ? 1 : 0);
        code = failed != 0 ? 1 : static_cast<int>(own);
      },
      launch_options);
  std::cout << "took " << seconds_since(start) << " s" << std::endl;
  return code;
}

}  // namespace moegrad::training
