// SPDX-License-Identifier: Apache-2.0

// Makes, reads, checks, simulates, compares and draws pipeline schedules (Note [Pipeline
// schedules]):
//
//     build/release/tools/schedule --generate DualPipeV --ranks 4 --micro-batches 10 --svg v.svg
//     build/release/tools/schedule --file mine.csv --transfers before-use --buffers 1
//     build/release/tools/schedule --file mine.csv --compare another.csv
//
// Exits with 1 when the schedule cannot run or the two differ, with 2 for wrong usage.

#include <algorithm>
#include <iostream>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "framework/io/input_file.h"
#include "framework/io/output_file.h"
#include "framework/runtime/error.h"
#include "framework/runtime/parse_number.h"
#include "plan/schedule/check.h"
#include "plan/schedule/generators.h"
#include "plan/schedule/passes.h"
#include "plan/schedule/schedule_csv.h"
#include "plan/schedule/simulate.h"
#include "plan/schedule/stage_layers.h"
#include "tools/schedule/schedule_chart.h"
#include "tools/schedule/schedule_report.h"
#include "tools/tool_main.h"

namespace moegrad::tools {

using namespace training;

namespace {

// For a generated schedule: ranks x micro-batches x --stages-per-rank, if that is given.
constexpr std::int64_t kMostActions = 1 << 18;

struct ScheduleOptions {
  std::string file, generate, compare, csv, svg;
  plan::GeneratorOptions size;
  bool merge_backward = false, recompute = false, reduce_grad = false, critical_path = false;
  int most_gathered = 0;
  std::string transfers = "none";
  int buffers = -1;
  int copies = 1;
  plan::StageCost cost = {.activation_bytes = 1};
  plan::SimulationOptions simulation;
  int layers = 0, first_less = 0, last_less = 0;
  std::vector<std::string> empty_layers;
};

plan::ScheduleFile read_file(const std::string& option, const std::string& path) {
  const auto text = read_input_file(path, option, plan::kMostScheduleBytes);
  try {
    return plan::read_schedule(text);
  } catch (Error& error) {
    error.append("; in " + option + ' ' + path);
    throw;
  }
}

plan::Schedule made_schedule(const ScheduleOptions& options) {
  if (!options.file.empty()) {
    const auto file = read_file("--file", options.file);
    if (file.letters == plan::Letters::kInputB) {
      std::cout << "letters         older: B is the input half of backward, BW the whole\n";
    }
    return file.schedule;
  }
  const auto& [ranks, micro_batches, stages_per_rank, group] = options.size;
  check_product("--ranks x --micro-batches", ranks, micro_batches, kMostActions);
  check_product("--ranks x --micro-batches x --stages-per-rank",
                std::int64_t{ranks} * micro_batches, std::max(stages_per_rank, 1), kMostActions);
  return plan::make_schedule(options.generate, options.size);
}

int copies_of(const ScheduleOptions& options) {
  return options.generate == "DualPipe" ? 2 : options.copies;
}

plan::Schedule with_passes(plan::Schedule schedule, const ScheduleOptions& options) {
  const bool has_passes = options.merge_backward || options.recompute || options.reduce_grad ||
                          options.most_gathered > 0 || options.transfers != "none";
  // Here, so that errors name places in the file.
  if (has_passes) {
    plan::check_schedule(schedule, {.copies = copies_of(options),
                                    .pairs_in_turn = options.simulation.pairs_in_turn});
  }
  if (options.merge_backward) schedule = plan::merge_backward(schedule);
  if (options.recompute) {
    std::vector<int> stages(static_cast<std::size_t>(size_of(schedule).stages));
    std::iota(stages.begin(), stages.end(), 0);
    schedule = plan::add_recompute(schedule, stages);
  }
  if (options.most_gathered > 0) schedule = plan::add_unshard(schedule, options.most_gathered);
  if (options.reduce_grad) schedule = plan::add_reduce_grad(schedule);
  if (options.transfers == "before-use") return plan::add_transfers(schedule);
  if (options.transfers == "when-sent") return plan::add_transfers_when_sent(schedule);
  return schedule;
}

/// The costs of each stage: those given for a layer, times the stage's layers; without layers,
/// those given for a stage.
std::vector<plan::StageCost> stage_costs(const ScheduleOptions& options, int stages) {
  if (options.layers == 0) return {options.cost};
  plan::LayerDivision division = {.layers = options.layers,
                                  .stages = stages,
                                  .first_less = options.first_less,
                                  .last_less = options.last_less};
  for (const auto& stage : options.empty_layers) {
    division.empty_layers.push_back(parse_number<int>("--empty-layers", stage, {0, stages - 1}));
  }
  std::vector<plan::StageCost> costs;
  std::string line = "layers         ";
  for (const int layers : layers_per_stage(division)) {
    auto cost = options.cost;  // messages and inputs are as large whatever the number of layers
    cost.forward *= layers;
    cost.backward_input *= layers;
    cost.backward_weight *= layers;
    cost.unshard *= layers;
    cost.reduce_grad *= layers;
    cost.activation_bytes *= layers;
    cost.parameter_bytes *= layers;
    cost.gradient_bytes *= layers;
    costs.push_back(cost);
    line += " " + std::to_string(layers);
  }
  std::cout << line << '\n';
  return costs;
}

int run(const ScheduleOptions& options) {
  // Both are opened before there is anything to write, so that a bad path is refused first.
  std::optional<OutputFile> csv, svg;
  if (!options.csv.empty()) csv.emplace(options.csv);
  if (!options.svg.empty()) svg.emplace(options.svg);
  const auto schedule = with_passes(made_schedule(options), options);
  check<UsageError>(
      options.buffers < 0 || options.transfers != "none" || has_transfers(schedule),
      "--buffers is for SEND and RECV, got a schedule without them: give a file that has them, or "
      "--transfers");
  const auto name = options.file.empty() ? options.generate : options.file;
  if (!options.compare.empty()) {
    const auto difference =
        first_difference(schedule, read_file("--compare", options.compare).schedule);
    std::cout << "comparison      " << difference.value_or("equal") << '\n';
    if (difference) return 1;
  }
  auto simulated = options.simulation;
  simulated.stages = stage_costs(options, size_of(schedule).stages);
  simulated.copies = copies_of(options);
  if (options.buffers >= 0) simulated.buffers = options.buffers;
  const auto simulation = plan::simulate(schedule, simulated);
  std::cout << schedule_report(name, schedule, simulation, options.critical_path);
  if (csv) {
    *csv << plan::to_csv({.schedule = schedule});
    csv->finish();
  }
  if (svg) {
    *svg << schedule_chart(name, simulation);
    svg->finish();
  }
  return 0;
}

CommandLine command_line(ScheduleOptions& options) {
  auto& [ranks, micro_batches, stages_per_rank, group] = options.size;
  auto& cost = options.cost;
  auto& simulation = options.simulation;
  CommandLine line(
      "Makes, reads, checks, simulates, compares and draws pipeline schedules.",
      {path_option("file", options.file, PathKind::kInput, "a schedule as CSV, a row per rank")
           .excluding("generate"),
       choice_of_text("generate", options.generate, plan::generator_names(), "a schedule by name"),
       number_option("ranks", ranks, {1, 4096}, "of a generated schedule").needing("generate"),
       number_option("micro-batches", micro_batches, {1, 1 << 18}, "of a generated schedule")
           .needing("generate"),
       number_option("stages-per-rank", stages_per_rank, {0, 256},
                     "of Interleaved1F1B; 0: 2 of it, and what another schedule has")
           .needing("generate"),
       number_option("group", group, {0, 1 << 18},
                     "micro-batches of a group of Interleaved1F1B; 0: as many as ranks")
           .needing("generate"),
       flag_option("merge-backward", options.merge_backward, "make B of I and W that follows it"),
       flag_option("recompute", options.recompute, "add R: keep only the inputs of stages"),
       number_option("most-gathered", options.most_gathered, {0, 4096},
                     "add UNSHARD and RESHARD; stages gathered at once; 0: none are added"),
       flag_option("reduce-grad", options.reduce_grad, "add REDUCE_GRAD"),
       choice_of_text("transfers", options.transfers, {"none", "before-use", "when-sent"},
                      "add SEND and RECV, and where each RECV goes"),
       number_option("copies", options.copies, {1, 2},
                     "ranks that may have the same stage in a file: 2 for DualPipe")
           .needing("file"),
       number_option("buffers", options.buffers, {-1, 1 << 20},
                     "messages from rank to rank that may be on their way; -1: any number"),
       number_option("forward", cost.forward, {0, 1e9}, "time of F, of a stage or a layer"),
       number_option("backward-input", cost.backward_input, {0, 1e9}, "time of I"),
       number_option("backward-weight", cost.backward_weight, {0, 1e9}, "time of W"),
       number_option("unshard-time", cost.unshard, {0, 1e9}, "time of UNSHARD"),
       number_option("reduce-grad-time", cost.reduce_grad, {0, 1e9}, "time of REDUCE_GRAD"),
       number_option("pair-factor", simulation.pair_factor, {0, 1e3},
                     "time of a pair, as part of that of its two actions")
           .excluding("pairs-in-turn"),
       flag_option("pairs-in-turn", simulation.pairs_in_turn,
                   "run the actions of a pair one after the other"),
       number_option("latency", simulation.latency, {0, 1e9}, "of a message"),
       number_option("bytes-per-time", simulation.bytes_per_time, {0, 1e18},
                     "rate from one rank to another; 0: any"),
       number_option("output-bytes", cost.output_bytes, {0, 1LL << 40}, "of a message"),
       number_option("activation-bytes", cost.activation_bytes, {0, 1LL << 40},
                     "from F to W, for each micro-batch"),
       number_option("input-bytes", cost.input_bytes, {0, 1LL << 40}, "from F to R"),
       number_option("parameter-bytes", cost.parameter_bytes, {0, 1LL << 40},
                     "from UNSHARD to RESHARD, or all the time"),
       number_option("gradient-bytes", cost.gradient_bytes, {0, 1LL << 40},
                     "from the first W to REDUCE_GRAD, or to the end"),
       number_option("layers", options.layers, {0, 1 << 20},
                     "of the model; times and bytes are then those of a layer; 0: of a stage"),
       number_option("first-less", options.first_less, {0, 1 << 20},
                     "layers fewer in the first stage")
           .needing("layers"),
       number_option("last-less", options.last_less, {0, 1 << 20}, "layers fewer in the last stage")
           .needing("layers"),
       texts_option("empty-layers", options.empty_layers,
                    "a stage with an empty layer; given once for each")
           .needing("layers"),
       path_option("compare", options.compare, PathKind::kInput,
                   "another schedule, which must be the same"),
       path_option("csv", options.csv, PathKind::kOutput, "where to write the schedule"),
       path_option("svg", options.svg, PathKind::kOutput, "where to draw it"),
       flag_option("critical-path", options.critical_path, "print it")});
  line.require_one_of({"file", "generate"});
  return line;
}

}  // namespace
}  // namespace moegrad::tools

int main(int argc, char** argv) {
  using namespace moegrad::tools;
  return tool_main(moegrad::run_program_once, "schedule", command_line, run, argc, argv);
}
