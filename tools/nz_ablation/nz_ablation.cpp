// SPDX-License-Identifier: Apache-2.0

// The ladder that the authors of the FRACTAL_NZ technique climbed, on this machine: training steps
// of one model whose experts run in another way on each rung, and one layer whose weights get into
// FRACTAL_NZ in two ways.
//
//     build/release/tools/nz_ablation
//
// Exits with 1 when losses that must agree to the bit do not.

#include <CLI/CLI.hpp>
#include <iomanip>
#include <iostream>

#include "framework/io/output_file.h"
#include "framework/runtime/error.h"
#include "framework/runtime/program.h"
#include "tools/nz_ablation/nz_ablation_report.h"
#include "train/config/program_options.h"

namespace moegrad::tools {

using namespace training;

namespace {

struct ProgramOptions {
  AblationOptions ablation = {};
  std::vector<std::string> presets = {"fine", "main"};
  std::string json;
};

int run(const ProgramOptions& options) {
  if (!options.json.empty()) OutputFile(options.json);  // before it takes minutes
  std::vector<Ladder> ladders;
  const auto add = [&](const Ladder& ladder) {
    std::cout << ladder_table(ladder) << std::endl;
    check_losses_agree(ladder);
    ladders.push_back(ladder);
  };
  for (const auto& preset : options.presets) add(run_ladder(preset, options.ablation));
  add(run_layer(options.presets.front(), options.ablation.rounds));

  for (const auto& ladder : ladders) std::cout << gain_lines(ladder);
  if (!options.json.empty()) write_ablation_json(options.json, ladders);
  return 0;
}

int parse_and_run(int argc, char** argv) {
  ProgramOptions options;
  auto& ablation = options.ablation;
  CLI::App app("Measures what each step towards experts on FRACTAL_NZ weights gains.");
  app.add_option("--preset", options.presets,
                 "one or more of fine, main and tiny; the layer is of the first")
      ->check(CLI::IsMember({"fine", "main", "tiny"}))
      ->delimiter(',')
      ->capture_default_str();
  add_number(app, "--ranks", ablation.ranks, {1, 1024}, "threads that train together");
  add_number(app, "--threads", ablation.threads, {1, 1024}, "per rank");
  add_number(app, "--rounds", ablation.rounds, {1, 1 << 20},
             "steps of each rung that are measured, in turn");
  add_path(app, "--json", options.json, PathKind::kOutput, "where to write the figures");
  if (const auto exit_code = parse_options(app, argc, argv)) return *exit_code;
  return run(options);
}

}  // namespace
}  // namespace moegrad::tools

int main(int argc, char** argv) {
  using namespace moegrad::tools;
  return moegrad::run_program("nz_ablation", [&] { return parse_and_run(argc, argv); });
}
