// SPDX-License-Identifier: Apache-2.0

// Training steps of a Qwen3-MoE (forward, backward, AdamW) on random tokens, as fast as they go;
// with more than one rank under fully_shard:
//
//     build/release/tests/bench_train_step --preset main --world-size 1 --threads-per-rank 2
//     mpirun -n 2 build/release/tests/bench_train_step --threads-per-rank 1     processes
//
// Prints, as medians over the steps, tokens/s and the share of the FMA peak measured before each
// step (MFU, by causal FLOPs, two per multiply-add); peak bytes; what the timed steps asked of the
// system (page faults, blocks of the arenas) and of the heap (calls of operator new); and what the
// time of rank 0 goes to, in parts and op by op, from steps of their own after the timed ones.
// --json writes the same.

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "framework/distributed/collectives.h"
#include "framework/distributed/mpi/launch_mpi.h"
#include "framework/distributed/parallel_dims.h"
#include "framework/distributed/process_group.h"
#include "framework/runtime/error.h"
#include "framework/runtime/mpi_environment.h"
#include "framework/runtime/program.h"
#include "framework/runtime/rank_context.h"
#include "models/causal_lm/loss.h"
#include "nn/moe.h"
#include "optim/adamw.h"
#include "parallel/expert/all_to_all_dispatcher.h"
#include "tests/bench/fma_peak.h"
#include "tests/bench/quantile.h"
#include "tests/bench/step_parts.h"
#include "tests/new_calls.h"
#include "train/config/command_line.h"
#include "train/config/common_options.h"
#include "train/memory_plan.h"
#include "train/speed_preset.h"
#include "train/train_step.h"

namespace moegrad::bench {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  std::string preset = "main";
  training::SpeedSizes sizes = {};
  int ranks = 1;
  int threads = 2;                    // per rank
  std::optional<CpuKernels> kernels;  // the fastest by default
  Dtype dtype = Dtype::kFloat32;      // of the arithmetic
  int expert_parallel = 1;
  bool merge_sources = false;
  int tensor_parallel = 1;
  std::int64_t steps = 5;
  std::int64_t warmup = 2;
  training::MemoryPlan memory;
  bool linear_cross_entropy = false;
  std::string json;
};

/// Seconds of one step, by phase, and the FMA peak just before it.
struct StepTime {
  double forward = 0, backward = 0, optimizer = 0;
  double peak = 0;
  double total() const { return forward + backward + optimizer; }
};

/// What the whole process has asked for so far, and its CPU time.
struct Requests {
  std::int64_t page_faults = 0, new_calls = 0, new_bytes = 0, cpu_us = 0;

  static Requests now() {
    rusage usage = {};
    getrusage(RUSAGE_SELF, &usage);
    const auto news = test::new_calls();
    const auto us = [](const timeval& time) { return 1'000'000 * time.tv_sec + time.tv_usec; };
    return {usage.ru_minflt + usage.ru_majflt, news.calls, news.bytes,
            us(usage.ru_utime) + us(usage.ru_stime)};
  }
};

struct Measured {
  std::vector<StepTime> steps;
  double loss = 0;
  StepParts parts;                          // medians over the steps
  std::map<std::string, double> functions;  // seconds per step, median
  std::int64_t peak_bytes = 0;
  std::int64_t activation_bytes = 0;  // at most, of all ranks
  CpuKernels kernels = {};
  Requests requests;               // of all ranks, in all timed steps
  std::int64_t rows_sent = 0;      // by a rank, to experts of others, in all timed steps
  std::int64_t exchange_wait = 0;  // nanoseconds
  std::int64_t arena_blocks = 0;
};

/// The same tokens, but the experts forget which rank a row is from: their weights' gradients are
/// one product over all rows. Its order, and so its bits, depend on the ranks.
class MergedSources final : public nn::TokenDispatcher {
 public:
  MergedSources(const std::shared_ptr<ProcessGroup>& group, std::int64_t experts)
      : dispatcher_(group, experts) {}
  nn::DispatchedRows dispatch(const Tensor& x, const nn::Router::Output& routed) override {
    auto dispatched = dispatcher_.dispatch(x, routed);
    dispatched.groups = {1, dispatched.groups.counts()};
    return dispatched;
  }
  Tensor combine(const Tensor& rows, const nn::DispatchedRows& dispatched) override {
    return dispatcher_.combine(rows, dispatched);
  }

 private:
  parallel::AllToAllDispatcher dispatcher_;
};

double seconds_since(Clock::time_point& begin) {
  const auto now = Clock::now();
  return std::chrono::duration<double>(now - std::exchange(begin, now)).count();
}

Measured run_rank(RankContext& context, const Options& options,
                  const training::SpeedPreset& preset) {
  models::CausalLM model(preset.config, /*seed=*/1);
  training::set_memory_plan(model, options.memory);
  const bool bf16 = options.dtype == Dtype::kBFloat16;
  if (bf16) model.compute_in(options.dtype);
  const int token_ranks = options.ranks / options.tensor_parallel;
  std::shared_ptr<ProcessGroup> tensor_ranks;
  int token_rank = 0;
  std::map<std::string, std::string> axes;
  if (options.ranks > 1) {
    const auto meshes = make_meshes(
        context.group(),
        {.dp_shard = token_ranks, .tp = options.tensor_parallel, .ep = options.expert_parallel});
    tensor_ranks = meshes.dense.group("tp");
    token_rank = meshes.dense.coordinate("shard");
    axes = meshes.axes_of_groups();
    fsdp::Policy policy;
    if (bf16) policy.mixed_precision.param_dtype = options.dtype;
    training::shard_model(model, meshes, policy,
                          {.sequence_parallel = true, .token_parts = options.tensor_parallel});
    for (const auto& [path, module] : model.named_modules()) {
      auto* const mixture = dynamic_cast<nn::MoE*>(module);
      if (mixture == nullptr || !options.merge_sources) continue;
      mixture->set_dispatcher(
          std::make_shared<MergedSources>(meshes.expert.group("ep"), preset.config.num_experts));
    }
  }
  optim::AdamW optimizer(model.named_parameters(), {.lr = 3e-4});
  check<ValueError>(
      options.ranks % options.tensor_parallel == 0 && preset.sequences % token_ranks == 0,
      "bench_train_step: ", options.ranks, " ranks, of which ", options.tensor_parallel,
      " share a micro-batch, must divide the ", preset.sequences, " sequences of a step");
  const auto own = preset.sequences / token_ranks;
  const auto batch = training::random_data(preset, own, token_ranks).micro_batch(0, token_rank);
  const auto targets = preset.sequences * preset.length;

  models::CausalLM::ForwardOptions forward;
  if (options.linear_cross_entropy) {
    forward.targets = batch.targets;
    forward.grad_ce_sum = 1 / static_cast<double>(targets);
  }

  Measured result;
  const auto step = [&] {
    StepTime time;
    context.group()->barrier()->wait();
    auto begin = Clock::now();
    optimizer.zero_grad();
    auto output = model(batch.tokens, batch.documents, forward);
    const auto loss =
        models::causal_lm_loss(output, batch.targets, targets, 0, {.token_ranks = tensor_ranks});
    result.loss = loss.ce_sum.item() / static_cast<double>(batch.targets.numel());
    time.forward = seconds_since(begin);
    output.logits = Tensor();  // as train_step does
    loss.objective.backward();
    time.backward = seconds_since(begin);
    optimizer.step();
    context.group()->barrier()->wait();
    time.optimizer = seconds_since(begin);
    return time;
  };
  for (std::int64_t i = 0; i < options.warmup; ++i) step();
  context.arena()->reset_peak();
  const auto blocks = context.arena()->system_allocations();
  const auto& counters = context.counters();
  const std::int64_t rows_before = counters.rows_sent, wait_before = counters.exchange_wait;
  for (std::int64_t i = 0; i < options.steps; ++i) {
    const double peak = context.rank() == 0 ? fma_peak(options.ranks * options.threads, 0.03) : 0;
    context.group()->barrier()->wait();
    const auto before = Requests::now();
    auto time = step();
    const auto after = Requests::now();
    context.group()->barrier()->wait();
    time.peak = peak;
    result.steps.push_back(time);
    result.requests.page_faults += after.page_faults - before.page_faults;
    result.requests.new_calls += after.new_calls - before.new_calls;
    result.requests.new_bytes += after.new_bytes - before.new_bytes;
    result.requests.cpu_us += after.cpu_us - before.cpu_us;
  }
  result.rows_sent = counters.rows_sent - rows_before;
  result.exchange_wait = counters.exchange_wait - wait_before;
  result.arena_blocks = context.arena()->system_allocations() - blocks;
  result.peak_bytes = context.arena()->peak().total();
  result.activation_bytes = context.arena()->peak(MemoryTag::kActivations);
  result.kernels = context.kernels();

  std::map<std::string, std::vector<double>> functions, parts;
  for (std::int64_t i = 0; i < options.steps; ++i) {
    context.spans().start(2);
    context.group()->barrier()->wait();  // not of the step
    const auto before = context.group()->traffic();
    const auto total = step().total();
    const auto after = context.group()->traffic();
    context.spans().stop();
    result.parts = step_parts(context.spans().spans(), total, axes, before, after);
    for (const auto& [name, seconds] : result.parts) parts[name].push_back(seconds);
    std::map<std::string, double> sums;
    for (const auto& span : context.spans().spans()) {
      if (span.kind == SpanKind::kModule || span.kind == SpanKind::kCollective) continue;
      if (span.kind == SpanKind::kPhase && span.lane != Lane::kOptimizer) continue;
      sums[span.name] += std::chrono::duration<double>(span.end - span.begin).count();
    }
    for (const auto& [name, seconds] : sums) functions[name].push_back(seconds);
  }
  for (auto& [name, seconds] : result.parts) seconds = median(parts[name]);
  for (const auto& [name, seconds] : functions) result.functions[name] = median(seconds);
  return result;
}

// Losses, bytes and blocks of all ranks; what a process has asked for, of all processes.
void sum_over_ranks(ProcessGroup& group, Measured& own) {
  own.loss = all_reduce(group, own.loss);
  own.peak_bytes = all_reduce(group, own.peak_bytes);
  own.activation_bytes = all_reduce(group, own.activation_bytes);
  own.arena_blocks = all_reduce(group, own.arena_blocks);
  if (!mpi_environment()) return;
  auto& [page_faults, new_calls, new_bytes, cpu_us] = own.requests;
  for (auto* const count : {&page_faults, &new_calls, &new_bytes, &cpu_us}) {
    *count = all_reduce(group, *count);
  }
}

int run(const Options& options) {
  auto preset = training::resized(training::speed_preset(options.preset), options.sizes);
  preset.config.dtype = arithmetic_dtype(options.dtype);  // of the parameters
  Measured measured;                                      // on rank 0
  LaunchOptions launch_options;
  launch_options.threads_per_rank = options.threads;
  launch_options.kernels = options.kernels;
  launch_ranks(
      options.ranks,
      [&](RankContext& context) {
        auto own = run_rank(context, options, preset);
        sum_over_ranks(*context.group(), own);
        if (context.rank() == 0) measured = std::move(own);
      },
      launch_options);
  if (!is_first_process()) return 0;

  auto steps = measured.steps;
  std::ranges::sort(steps, {}, &StepTime::total);
  const auto time = steps[steps.size() / 2];
  const auto tokens = static_cast<double>(preset.sequences * preset.length);
  const double flops = models::flops_per_token(preset.config, preset.length) * tokens;
  std::vector<double> shares, peaks;
  for (const auto& step : steps) {
    shares.push_back(flops / step.total() / step.peak);
    peaks.push_back(step.peak);
  }
  const double mfu = median(shares);
  const double peak = median(peaks);
  const double loss = measured.loss / options.ranks;
  const auto peak_bytes = measured.peak_bytes, arena_blocks = measured.arena_blocks;
  const auto& requests = measured.requests;
  const auto per_step = [&](std::int64_t count) {
    return static_cast<double>(count) / static_cast<double>(options.steps);
  };
  nlohmann::ordered_json report = {{"preset", options.preset},
                                   {"ranks", options.ranks},
                                   {"threads", options.threads},
                                   {"sequences", preset.sequences},
                                   {"length", preset.length},
                                   {"experts", preset.config.num_experts},
                                   {"parameters", models::parameter_count(preset.config)},
                                   {"loss", loss},
                                   {"tokens_per_second", tokens / time.total()},
                                   {"mfu", mfu},
                                   {"fma_peak_gflops", peak / 1e9},
                                   {"mflop_per_token", flops / tokens / 1e6},
                                   {"step_ms", 1e3 * time.total()},
                                   {"fastest_step_ms", 1e3 * steps.front().total()},
                                   {"forward_ms", 1e3 * time.forward},
                                   {"backward_ms", 1e3 * time.backward},
                                   {"optimizer_ms", 1e3 * time.optimizer},
                                   {"peak_bytes", peak_bytes},
                                   {"activation_bytes", measured.activation_bytes},
                                   {"dtype", to_string(options.dtype)},
                                   {"kernels", to_string(measured.kernels)},
                                   {"page_faults_per_step", per_step(requests.page_faults)},
                                   {"arena_blocks_per_step", per_step(arena_blocks)},
                                   {"new_calls_per_step", per_step(requests.new_calls)},
                                   {"new_bytes_per_step", per_step(requests.new_bytes)},
                                   {"cpu_ms_per_step", per_step(requests.cpu_us) / 1e3},
                                   {"expert_parallel", options.expert_parallel},
                                   {"rows_sent_per_step", per_step(measured.rows_sent)},
                                   {"exchange_wait_ms", per_step(measured.exchange_wait) / 1e6}};
  std::vector<std::pair<std::string, double>> functions(measured.functions.begin(),
                                                        measured.functions.end());
  std::ranges::sort(functions, std::greater(), &std::pair<std::string, double>::second);
  double all_parts = 0;
  for (const auto& [name, seconds] : measured.parts) {
    report["parts_ms"][name] = 1e3 * seconds;
    all_parts += seconds;
  }
  for (const auto& [name, seconds] : functions) report["functions_ms"][name] = 1e3 * seconds;

  std::cout << std::fixed << std::setprecision(1) << options.preset << " (" << preset.sequences
            << " x " << preset.length << " tokens, " << preset.config.num_experts << " experts), "
            << options.ranks << " ranks x " << options.threads << " threads, " << options.dtype
            << " by " << measured.kernels << ": " << tokens / time.total() << " tokens/s, MFU "
            << 100 * mfu << " % of " << peak / 1e9 << " GFLOP/s, loss " << std::setprecision(4)
            << loss << std::setprecision(1) << "\nstep " << 1e3 * time.total() << " ms (fastest "
            << 1e3 * steps.front().total() << "): forward " << 1e3 * time.forward << ", backward "
            << 1e3 * time.backward << ", optimizer " << 1e3 * time.optimizer << "; peak "
            << static_cast<double>(peak_bytes) / 1048576 << " MiB, of activations "
            << static_cast<double>(measured.activation_bytes) / 1048576
            << " MiB\na step: " << per_step(requests.page_faults) << " page faults, "
            << per_step(arena_blocks) << " arena blocks from the system, "
            << per_step(requests.new_calls) << " calls of operator new for "
            << per_step(requests.new_bytes) / 1024 << " KiB, " << per_step(requests.cpu_us) / 1e3
            << " ms of CPU time\n";
  if (options.expert_parallel > 1) {
    std::cout << "rank 0, a step: " << per_step(measured.rows_sent)
              << " rows to experts of other ranks, " << per_step(measured.exchange_wait) / 1e6
              << " ms of waiting for exchanges\n";
  }
  for (const auto& [name, seconds] : measured.parts) {
    std::cout << std::setw(10) << std::setprecision(4) << seconds << " s " << std::setw(6)
              << std::setprecision(1) << 100 * seconds / all_parts << " %  " << name << '\n';
  }
  for (const auto& [name, seconds] : functions) {
    std::cout << std::setw(10) << 1e3 * seconds << " ms  " << name << '\n';
  }
  if (!options.json.empty()) {
    std::ofstream file(options.json);
    file << report.dump(2) << '\n';
    check(file.flush().good(), "bench_train_step: cannot write '", options.json, "'");
  }
  return 0;
}

int parse_and_run(int argc, char** argv) {
  Options options;
  options.ranks = default_world_size(options.ranks);
  using namespace training;
  std::vector<Option> all = {
      text_option("preset", options.preset, "main, fine or long"),
      number_option("sequences", options.sizes.sequences, {1, 1 << 20},
                    "of a step, instead of the preset's"),
      number_option("length", options.sizes.length, {1, 1 << 24},
                    "of each sequence, instead of the preset's"),
      number_option("experts", options.sizes.experts, {1, 1 << 20},
                    "instead of the preset's; as large, and as many of them for each token"),
      world_size_option(options.ranks, 1024),
      threads_option(options.threads),
      kernels_option(options.kernels),
      arithmetic_option(options.dtype),
      number_option("expert-parallel", options.expert_parallel, {1, 1024},
                    "ranks that have the experts of a layer between them"),
      number_option("tensor-parallel", options.tensor_parallel, {1, 1024},
                    "ranks, of --world-size, that share the work on the same tokens, with "
                    "sequence parallelism"),
      flag_option("merge-sources", options.merge_sources,
                  "one product over the rows of all ranks for an expert's gradient, whose bits "
                  "then depend on the ranks: to see what the exact order costs")
          .needing("expert-parallel"),
      number_option("steps", options.steps, {1, 1 << 20}, "timed"),
      number_option("warmup", options.warmup, {0, 1 << 20}, "steps before"),
      flag_option("linear-cross-entropy", options.linear_cross_entropy,
                  "no logits as a whole; the head's gradients are made in forward"),
      path_option("json", options.json, PathKind::kOutput, "file for the figures")};
  add_memory_plan_options(all, options.memory);
  CommandLine line("Measures training steps of a Qwen3-MoE.", std::move(all));
  if (const auto exit_code = line.parse(argc, argv)) return *exit_code;
  check<UsageError>(options.ranks % options.expert_parallel == 0,
                    "--expert-parallel: must divide the ranks (--world-size), ", options.ranks,
                    ", got ", options.expert_parallel);
  check<UsageError>(!options.merge_sources || options.expert_parallel > 1,
                    "--merge-sources: needs --expert-parallel of at least 2, got ",
                    options.expert_parallel);
  return run(options);
}

}  // namespace
}  // namespace moegrad::bench

int main(int argc, char** argv) {
  return moegrad::run_program("bench_train_step",
                              [&] { return moegrad::bench::parse_and_run(argc, argv); });
}
