// SPDX-License-Identifier: Apache-2.0

// Compares the losses and gradient norms of two training runs, step by step, from the files that
// train_qwen3_moe --metrics writes:
//
//     build/release/tools/compare_losses a.jsonl b.jsonl --assert-equal
//     build/release/tools/compare_losses a.jsonl b.jsonl --rtol 1e-3 --common
//
// Exits with 1 when they differ, with 2 when they cannot be compared.

#include <CLI/CLI.hpp>
#include <iostream>

#include "framework/runtime/error.h"
#include "framework/runtime/program.h"
#include "tools/compare_losses/loss_comparison.h"
#include "train/config/program_options.h"

namespace moegrad::tools {

using namespace training;

namespace {

int run(const std::string& a_path, const std::string& b_path, const ComparisonOptions& options) {
  const auto a = read_metrics(a_path);
  const auto b = read_metrics(b_path);
  const auto comparison = compare_losses(a, b, options);
  std::cout << to_string(a, b, options, comparison) << std::flush;
  return comparison.equal ? 0 : 1;
}

int parse_and_run(int argc, char** argv) {
  std::string a, b;
  ComparisonOptions options;
  CLI::App app("Compares the losses and gradient norms of two training runs.");
  add_path(app, "a", a, PathKind::kInput, "metrics of a run, one JSON object per line")->required();
  add_path(app, "b", b, PathKind::kInput, "metrics of another")->required();
  app.add_flag("--common", options.common, "only the steps that both have");
  auto* const limits = app.add_option_group("Limits", "--assert-equal, or a tolerance");
  limits->require_option(1, 2);
  auto* const bitwise =
      limits->add_flag("--assert-equal", options.bitwise, "equal to the last bit");
  add_number(*limits, "--rtol", options.rtol, {0, 1e30},
             "|a - b| may be this part of |a|, plus --atol")
      ->excludes(bitwise);
  add_number(*limits, "--atol", options.atol, {0, 1e30},
             "|a - b| may be this, plus --rtol's part of |a|")
      ->excludes(bitwise);
  if (const auto exit_code = parse_options(app, argc, argv)) return *exit_code;
  return run(a, b, options);
}

}  // namespace
}  // namespace moegrad::tools

int main(int argc, char** argv) {
  using namespace moegrad::tools;
  return moegrad::run_program(
      "compare_losses", [&] { return parse_and_run(argc, argv); }, /*failure=*/2);
}
