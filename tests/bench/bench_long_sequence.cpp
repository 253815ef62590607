// SPDX-License-Identifier: Apache-2.0

// One training step on one long sequence, in a budget of memory that only recomputation, swap and
// the chunked loss together keep to:
//
//     build/release/tests/bench_long_sequence --length 65536
//
// Layers keep their input and run again; these inputs are swapped; logits exist for 512 tokens at a
// time. The peaks of a step are measured at two short lengths, of the plain model, of all three
// tools and of each two, and are linear in the tokens. The budget lies between what the three need
// and what the best two need, at that length, and is at most half of what the plain model needs.
// Then each two tools run until they exceed it, and the three run a whole step.

#include <algorithm>
#include <cstdint>
#include <iomanip>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "framework/distributed/launch.h"
#include "framework/runtime/arena.h"
#include "framework/runtime/error.h"
#include "framework/runtime/program.h"
#include "framework/runtime/rank_context.h"
#include "tests/bench/memory_step.h"
#include "train/config/command_line.h"
#include "train/config/common_options.h"
#include "train/memory_budget.h"
#include "train/speed_preset.h"

namespace moegrad::bench {
namespace {

using training::SpeedPreset;

struct Tools {
  std::string name;
  bool recompute = false, swap = false, chunked_loss = false;
};
const Tools kAll{"all three", true, true, true};
const std::vector<Tools> kPairs{{"recomputation and swap", true, true, false},
                                {"recomputation and chunked loss", true, false, true},
                                {"swap and chunked loss", false, true, true}};

SpeedPreset model_of(std::int64_t length) {
  auto preset = training::speed_preset("main");
  auto& config = preset.config;
  config.num_hidden_layers = 16;
  config.hidden_size = 128;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 32;
  config.num_experts = 8;
  config.num_experts_per_tok = 2;
  config.moe_intermediate_size = 128;
  preset.sequences = 1;
  preset.length = length;
  return preset;
}

struct Outcome {
  std::int64_t peak = 0;
  double loss = 0, seconds = 0;
  std::string error = {};    // of the budget
  std::string shrinks = {};  // what would make it fit
};

Outcome run_step(int threads, std::int64_t length, const Tools& tools, std::int64_t budget) {
  Outcome outcome;
  LaunchOptions options;
  options.threads_per_rank = threads;
  launch(
      1,
      [&](RankContext& context) {
        const auto preset = model_of(length);
        const auto& config = preset.config;
        MemoryTools memory;
        if (tools.recompute) memory.plan.recompute_layers = config.num_hidden_layers;
        if (tools.swap) memory.plan.offload = "attn_norm";  // what layers begin with
        memory.plan.offload_window = length * config.hidden_size * size_of(Dtype::kFloat32);
        if (tools.chunked_loss) memory.loss = MemoryTools::Loss::kChunked;
        const auto batch = training::random_data(preset, 1, 1).micro_batch(0, 0);
        MemoryStep step(config, memory, batch);
        context.arena()->reset_peak();
        context.arena()->set_budget(budget);
        try {
          outcome.seconds = step.run().total();
          outcome.loss = step.loss();
        } catch (const MemoryBudgetError& error) {
          outcome.error = error.what();
          outcome.shrinks = training::what_shrinks(error.live());
        }
        outcome.peak = context.arena()->peak().total();
      },
      options);
  return outcome;
}

/// At `length`, as if what it measures at a quarter and half of a short length went on.
std::int64_t predicted_peak(int threads, std::int64_t length, const Tools& tools) {
  const auto few = std::min<std::int64_t>(length / 2, 4096), many = 2 * few;
  const auto at_few = run_step(threads, few, tools, 0).peak;
  const auto at_many = run_step(threads, many, tools, 0).peak;
  return at_few + (at_many - at_few) * (length - few) / few;
}

std::string megabytes(std::int64_t bytes) { return std::to_string(bytes / 1'000'000) + " MB"; }

int parse_and_run(int argc, char** argv) {
  std::int64_t length = 65536;
  int threads = 2;
  using namespace training;
  CommandLine line("Trains a step on one long sequence in a small budget of memory.",
                   {number_option("length", length, {16, 1 << 24}, "tokens of the sequence"),
                    threads_option(threads)});
  if (const auto exit_code = line.parse(argc, argv)) return *exit_code;
  const auto plain = predicted_peak(threads, length, {"nothing"});
  const auto needed = predicted_peak(threads, length, kAll);
  std::vector<std::int64_t> pairs;
  for (const auto& pair : kPairs) pairs.push_back(predicted_peak(threads, length, pair));
  const auto best_pair = *std::ranges::min_element(pairs);
  const auto budget = std::min(plain / 2, (needed + best_pair) / 2);
  std::cout << length << " tokens, 16 layers; peak of the plain model " << megabytes(plain)
            << ", of all three tools " << megabytes(needed) << ", of the best two "
            << megabytes(best_pair) << " (predicted); budget " << megabytes(budget) << std::endl;
  bool holds = needed <= budget && budget < best_pair;
  for (const auto& pair : kPairs) {
    const auto outcome = run_step(threads, length, pair, budget);
    holds = holds && !outcome.error.empty();
    std::cout << "with " << pair.name << ": "
              << (outcome.error.empty() ? "fits" : outcome.error + outcome.shrinks)
              << std::endl;
  }
  const auto outcome = run_step(threads, length, kAll, budget);
  holds = holds && outcome.error.empty();
  std::cout << "with all three: "
            << (outcome.error.empty()
                    ? "a step in " + std::to_string(outcome.seconds) + " s, loss " +
                          std::to_string(outcome.loss) + ", peak " + megabytes(outcome.peak)
                    : outcome.error)
            << '\n'
            << (holds ? "holds: only all three keep to the budget\n" : "BROKEN\n");
  return holds ? 0 : 1;
}

}  // namespace
}  // namespace moegrad::bench

int main(int argc, char** argv) {
  return moegrad::run_program_once("bench_long_sequence",
                                   [&] { return moegrad::bench::parse_and_run(argc, argv); });
}
