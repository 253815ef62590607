// SPDX-License-Identifier: Apache-2.0

// Measures, on this machine, the ladder that the authors of the FRACTAL_NZ technique climbed:
// training steps of one model whose experts run in another way on each rung, forward passes of one
// layer on 8 ranks on the same rungs, and two ways to bring that layer's weights into FRACTAL_NZ.
//
//     build/release/tools/nz_ablation
//
// Exits with 1 if losses that must agree to the bit do not agree.

#include <iomanip>
#include <iostream>

#include "framework/io/output_file.h"
#include "framework/runtime/error.h"
#include "tools/nz_ablation/nz_ablation_report.h"
#include "tools/tool_main.h"
#include "train/config/common_options.h"

namespace moegrad::tools {

using namespace training;

namespace {

struct ProgramOptions {
  AblationOptions ablation = {};
  std::vector<std::string> presets = {"fine", "main"};
  std::string json;
};

int run(const ProgramOptions& options) {
  check_one_process();
  if (!options.json.empty()) OutputFile(options.json);  // before it takes minutes
  std::vector<Ladder> ladders;
  const auto add = [&](const Ladder& ladder) {
    std::cout << ladder_table(ladder) << std::endl;
    check_losses_agree(ladder);
    ladders.push_back(ladder);
  };
  for (const auto& preset : options.presets) add(run_ladder(preset, options.ablation));
  add(run_layer_ladder(options.presets.front(), options.ablation.rounds));
  add(run_ways_to_nz(options.presets.front(), options.ablation.rounds));

  for (const auto& ladder : ladders) std::cout << gain_lines(ladder);
  if (!options.json.empty()) write_ablation_json(options.json, ladders);
  return 0;
}

CommandLine command_line(ProgramOptions& options) {
  auto& ablation = options.ablation;
  return {"Measures what each step towards experts on FRACTAL_NZ weights gains.",
          {choice_of_texts("preset", options.presets, {"fine", "main", "tiny"},
                           "one or more; the layer is of the first"),
           thread_ranks_option(ablation.ranks, 1024), threads_option(ablation.threads),
           number_option("rounds", ablation.rounds, {1, 1 << 20},
                         "steps of each rung that are measured, in turn"),
           path_option("json", options.json, PathKind::kOutput, "where to write the figures")}};
}

}  // namespace
}  // namespace moegrad::tools

int main(int argc, char** argv) {
  using namespace moegrad::tools;
  return tool_main(moegrad::run_program, "nz_ablation", command_line, run, argc, argv);
}
