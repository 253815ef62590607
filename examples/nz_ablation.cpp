// SPDX-License-Identifier: Apache-2.0

// The ladder that the authors of the FRACTAL_NZ technique climbed, on this machine: training steps
// of one model whose experts run in another way on each rung, and one layer whose weights get into
// FRACTAL_NZ in two ways.
//
//     build/release/examples/nz_ablation
//
// Exits with 1 when losses that must agree to the bit do not.

#include <CLI/CLI.hpp>
#include <iomanip>
#include <iostream>

#include "examples/nz_ablation_report.h"
#include "examples/output_file.h"
#include "framework/runtime/error.h"

namespace moegrad::examples {
namespace {

struct ProgramOptions {
  AblationOptions ablation = {};
  std::vector<std::string> presets = {"fine", "main"};
  std::string json;
};

int run(const ProgramOptions& options) {
  if (!options.json.empty()) open_for_writing(options.json);  // before it takes minutes
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

}  // namespace
}  // namespace moegrad::examples

int main(int argc, char** argv) {
  moegrad::examples::ProgramOptions options;
  auto& ablation = options.ablation;
  CLI::App app("Measures what each step towards experts on FRACTAL_NZ weights gains.");
  app.add_option("--preset", options.presets,
                 "one or more of fine, main and tiny; the layer is of the first")
      ->check(CLI::IsMember({"fine", "main", "tiny"}))
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--ranks", ablation.ranks, "threads that train together")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--threads", ablation.threads, "per rank")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--rounds", ablation.rounds, "steps of each rung that are measured, in turn")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--json", options.json, "where to write the figures");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    return moegrad::examples::run(options);
  } catch (const moegrad::Error& error) {
    std::cerr << "nz_ablation: " << error.what() << '\n';
    return 1;
  }
}
