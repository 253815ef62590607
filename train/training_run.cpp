// SPDX-License-Identifier: Apache-2.0
#include "train/training_run.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iomanip>
#include <iostream>
#include <map>
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
#include "parallel/tensor/check_division.h"
#include "train/config/train_options.h"
#include "train/data/step_loader.h"
#include "train/evaluate.h"
#include "train/logs/run_logs.h"
#include "train/memory_budget.h"
#include "train/memory_plan.h"
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

// With the other files of the model that the run has begun from.
models::SavePretrainedOptions export_options(const TrainConfig& options) {
  return {.dtype = options.output.export_dtype, .copy_from = options.model.hf_model};
}

// The unit that a loss is divided by.
std::string_view unit_of(const TrainingData& data) {
  return data.source().is_text() ? "byte" : "token";
}

// Throws an error that names the op which made the first NaN or infinity. It runs the step again:
// the step changed nothing, so it gives the same result.
[[noreturn]] void stop_at_non_finite(std::int64_t number, const StepResult& result,
                                     const std::function<StepResult()>& step) {
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

// No rank ever holds the whole model: first only shapes are made, then shards, then their values.
models::CausalLM shapes_of(const TrainConfig& options) {
  const MetaGuard no_bytes;
  return models::CausalLM(options.model_config());
}

// Where bits may differ from those of one rank.
void print_inexact_sums(models::CausalLM& model, const DeviceMesh& ranks,
                        const TrainConfig::Data& data) {
  const auto tokens = data.batch * data.sequence_length;
  const auto inexact = parallel::inexact_sums(model, ranks, tokens);
  if (inexact.empty()) return;
  std::cout << "not to the bit of one rank, because these sums are too short, or of a number that "
            << ranks.size() << " ranks do not halve (docs/tensor_parallelism.md):\n";
  for (const auto& what : inexact) std::cout << "  " << what << '\n';
  std::cout << std::flush;
}

// A rank's part of a run: what it trains, and what is kept and shown of that.
class Run {
 public:
  // Makes all of it and goes on from the newest checkpoint, if any.
  Run(const TrainConfig& options, const TrainingData& data, const TrainingEvents& events,
      RankContext& context)
      : options_(options),
        data_(data),
        events_(events),
        context_(context),
        dims_(options.parallel_dims()),
        meshes_(make_meshes(context.group(), dims_)),
        model_(shapes_of(options)),
        state_(sharded_model()),
        optimizer_(make_optimizer(model_, options.optim)),
        identity_(describe_run(options, data)),
        checkpoints_(options.checkpoint.dir, trained_, checkpoint_options()),
        first_(resume()),
        profile_(options.output.profile_steps, options.output.profile),
        logs_(open_logs()) {}

  // Trains to the last step, or until it is told to stop. Returns what run_training() does.
  int train() {
    const auto before = validation_loss();
    if (!before) return stop();
    if (is_rank_0_) std::cout << "training, from validation loss " << *before << std::endl;
    logs_.first_validation(first_, *before, unit_of(data_));
    fsdp::StepPlan plan(state_, data_.micro_batches(), fsdp::accumulation_on(dims_));
    StepLoader loader(data_, plan.indices());
    SlowRankWatch watch(context_, meshes_.stage,
                        fsdp::ranks_compute_equally(dims_, data_.micro_batches()));
    window_begin_ = Clock::now();
    while (trained_.step < options_.optim.steps) {
      step(plan, loader);
      if (!end_step(watch)) return stop();
    }
    return finish();
  }

 private:
  fsdp::State& sharded_model();
  TrainCheckpointOptions checkpoint_options() const;
  std::int64_t resume();
  RunLogs open_logs();
  void step(fsdp::StepPlan& plan, StepLoader& loader);
  void leave_out_or_throw(const StepResult& result, const std::function<StepResult()>& again);
  bool end_step(SlowRankWatch& watch);
  StepEnd agree() const { return agree_on_step_end(events_, context_, window_begin_); }
  bool is_to_stop();
  std::optional<double> validation_loss();
  bool print_result();
  int finish();
  int stop();

  const TrainConfig& options_;
  const TrainingData& data_;
  const TrainingEvents& events_;
  RankContext& context_;
  const bool is_rank_0_ = context_.rank() == 0;
  const ParallelDims dims_;
  const ParallelMeshes meshes_;
  models::CausalLM model_;
  fsdp::State& state_;
  const std::unique_ptr<optim::Optimizer> optimizer_;
  TrainState trained_{model_, *optimizer_};
  const std::map<std::string, std::string> identity_;  // describe_run()
  TrainCheckpoints checkpoints_;
  const std::int64_t first_;  // step
  StepProfile profile_;
  RunLogs logs_;
  const optim::Schedule schedule_ = schedule_of(options_.optim);
  Clock::time_point window_begin_ = Clock::now();  // in which the ranks are compared
  int stop_reason_ = 0;                            // what stop_requested has returned
};

fsdp::State& Run::sharded_model() {
  set_memory_plan(model_, options_.memory.plan);
  auto& state = shard_model(model_, meshes_, options_.policy(),
                            {.sequence_parallel = options_.parallel.sequence_parallel,
                             .token_parts = options_.parallel.token_parts});
  if (is_rank_0_) print_inexact_sums(model_, meshes_.dense["tp"], options_.data);
  model_.to_empty();
  if (options_.model.hf_model.empty()) {
    model_.init_weights(options_.optim.seed);
  } else {
    check_same_weights(context_.group(), options_.model.hf_model);
    models::load_pretrained(model_, options_.model.hf_model);
  }
  return state;
}

TrainCheckpointOptions Run::checkpoint_options() const {
  return {.interval = options_.checkpoint.interval,
          .keep = options_.checkpoint.keep,
          .run = identity_,
          .formerly = former_options(),
          .same_so_far =
              [this](const std::string& name, const std::string& saved, std::int64_t step) {
                return name == "steps" && same_first_steps(options_.optim, saved, step);
              },
          .values =
              [this](std::int64_t steps) {
                return std::map<std::string, std::string>{
                    {kTokens, std::to_string(data_.tokens_before(steps))}};
              },
          .resume = options_.checkpoint.resume,
          .observe =
              [this](CheckpointPoint point) {
                if (events_.at_checkpoint_point)
                  events_.at_checkpoint_point(context_.rank(), point);
              }};
}

// Says from where the run goes on, and which ranks have nothing to do. Returns the steps done.
std::int64_t Run::resume() {
  const auto resumed = checkpoints_.resume();
  if (!is_rank_0_) return trained_.step;
  if (resumed) {
    std::cout << "resumed from " << resumed->folder.string() << ", saved by " << resumed->world_size
              << " ranks" << std::endl;
  } else if (options_.checkpoint.resume) {
    std::cout << "no checkpoint yet, from step 0" << std::endl;
  }
  const auto idle = fsdp::idle_ranks(data_.micro_batches(), fsdp::GridPosition::of(state_.ranks()),
                                     fsdp::accumulation_on(dims_));
  if (idle > 0) {
    std::cout << idle << " of " << context_.world_size()
              << " ranks run no micro-batch: --micro-batches is " << data_.micro_batches()
              << std::endl;
  }
  return trained_.step;
}

RunLogs Run::open_logs() {
  const SlowStorage storage("opening the logs");
  if (is_rank_0_) profile_.open(first_);
  return RunLogs(options_.output,
                 {.header = run_header(options_, unit_of(data_), identity_),
                  .configuration = describe(options_),
                  .first_step = first_,
                  .steps = options_.optim.steps,
                  .expert_parallel = options_.parallel.expert_parallel,
                  .offloads = options_.memory.plan.offload != "none",
                  .axes = meshes_.axes_of_groups()},
                 context_, profile_);
}

void Run::step(fsdp::StepPlan& plan, StepLoader& loader) {
  const auto step = trained_.step;
  logs_.begin_step(step);
  const auto start = Clock::now();
  optimizer_->set_lr(schedule_(step));
  const auto batches = loader.batches(step);
  const auto data_seconds = seconds_since(start);
  const auto run_step = [&] {
    const WorkGuard work(WorkClass::kCompute);
    return train_step(
        model_, plan, batches,
        {.max_grad_norm = options_.optim.max_grad_norm,
         .balance = options_.balance,
         .seed = options_.optim.seed,
         .step = step,
         .linear_cross_entropy = options_.memory.linear_cross_entropy,
         .loss_weights = options_.optim.loss_weights,
         .tensor_ranks = meshes_.dense.group("tp"),
         .token_parts = std::max<std::int64_t>(1, options_.parallel.token_parts / dims_.tp)},
        *optimizer_);
  };
  auto result = run_step();
  if (!result.is_finite()) leave_out_or_throw(result, run_step);
  ++trained_.step;
  logs_.end_step({.step = step,
                  .lr = schedule_(step),
                  .seconds = seconds_since(start),
                  .data_seconds = data_seconds,
                  .tokens = result.tokens,
                  .world_size = options_.parallel.world_size,
                  .skipped_steps = trained_.skipped_steps,
                  .result = std::move(result)});
}

// Counts the step as one that is left out, or ends the run if there are too many.
void Run::leave_out_or_throw(const StepResult& result, const std::function<StepResult()>& again) {
  if (trained_.skipped_steps >= options_.optim.max_skipped_steps) {
    if (trained_.step > first_) checkpoints_.save();
    checkpoints_.finish();
    stop_at_non_finite(trained_.step, result, again);
  }
  ++trained_.skipped_steps;
  if (is_rank_0_) warn_of_skipped_step(trained_.step, result, logs_);
}

// Validates, compares the ranks and saves where that is due. False if the run is to stop.
bool Run::end_step(SlowRankWatch& watch) {
  if (logs_.validation_due(trained_.step)) {
    const auto loss = validation_loss();
    if (!loss) return false;
    logs_.validation(trained_.step, *loss, unit_of(data_));
  }
  const auto [reason, window_ends] = agree();
  if (window_ends) {
    warn_of_slow_ranks(watch.close_window(), logs_, is_rank_0_);
    window_begin_ = Clock::now();
  }
  const bool is_last = trained_.step == options_.optim.steps;
  if (reason != 0 && !is_last) {
    stop_reason_ = reason;
    return false;
  }
  if (is_last) checkpoints_.save();
  checkpoints_.after_step();
  return true;
}

bool Run::is_to_stop() {
  stop_reason_ = agree().stop;
  return stop_reason_ != 0;
}

// None if the run is to stop.
std::optional<double> Run::validation_loss() {
  return evaluate(model_, data_, state_.ranks(), [this] { return is_to_stop(); });
}

// Prints how good the model is and what it says. False if the run is to stop.
bool Run::print_result() {
  model_.eval();
  const auto validation = validation_loss();
  if (!validation) return false;
  const auto& tokens = data_.source();
  const auto& output = options_.output;
  logs_.validation(options_.optim.steps, *validation, unit_of(data_));
  // Only a model of bytes can produce text.
  if (!tokens.is_text() || output.sample_bytes == 0) return true;
  const auto text = sample(
      model_, output.prompt, output.sample_bytes, options_.data.sequence_length, output.temperature,
      options_.optim.seed, state_.ranks(), [this] { return is_to_stop(); }, dims_.tp);
  if (stop_reason_ != 0) return false;
  if (is_rank_0_) {
    std::cout << "sample: " << output.prompt << text << '\n'
              << "words of the sample that occur in the text: "
              << 100 * known_words(text, tokens.as_text()) << " %" << std::endl;
  }
  return true;
}

int Run::finish() {
  logs_.end_line();
  logs_.recent_loads();
  if (!print_result()) return stop();
  if (!options_.output.export_hf.empty()) {
    models::save_pretrained(model_, options_.output.export_hf, export_options(options_));
  }
  const bool written = logs_.report(), saved = checkpoints_.finish();
  return saved && written ? 0 : 1;
}

int Run::stop() {
  if (trained_.step > first_) checkpoints_.save();
  logs_.end_line();
  const bool written = logs_.report(), saved = checkpoints_.finish();
  if (is_rank_0_ && trained_.step > 0) {
    std::cout << "stopped after step " << trained_.step - 1 << std::endl;
  }
  if (is_rank_0_ && trained_.step == 0) std::cout << "stopped before the first step" << std::endl;
  return saved && written ? -stop_reason_ : 1;
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
  check_memory_budget(options);
  check_output_folder("--checkpoint-dir", options.checkpoint.dir);
  check_output_folder("--tensorboard", options.output.tensorboard);
  check_export(options);
  check_output_folder("--export-hf", options.output.export_hf);
  std::atomic<int> code = 0;
  LaunchOptions launch_options;
  launch_options.threads_per_rank = options.parallel.threads_per_rank;
  launch_options.kernels = options.parallel.kernels;
  launch_options.deadline = std::chrono::seconds(options.parallel.collective_deadline);
  launch_options.exit_after = launch_options.deadline;
  launch_options.link = events.link;
  launch_options.last_operations_folder = options.checkpoint.dir;
  launch_ranks(
      options.parallel.world_size,
      [&](RankContext& context) {
        context.set_log_level(options.output.log_level);
        check_same_run(context.group(), record_run(options, data));
        context.arena()->set_budget(options.memory.budget);
        const int own = [&] {
          try {
            return Run(options, data, events, context).train();
          } catch (MemoryBudgetError& error) {
            error.append(what_shrinks(error.live()));
            throw;
          }
        }();
        // 1 if any rank has it; all have been stopped by the same.
        const auto failed = all_reduce<std::int64_t>(*context.group(), own == 1 ? 1 : 0);
        code = failed != 0 ? 1 : own;
      },
      launch_options);
  std::cout << "took " << seconds_since(start) << " s" << std::endl;
  return code;
}

}  // namespace moegrad::training
