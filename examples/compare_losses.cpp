// SPDX-License-Identifier: Apache-2.0

// Compares the losses and gradient norms of two training runs, step by step, from the files that
// train_qwen3_moe --metrics writes:
//
//     build/release/examples/compare_losses a.jsonl b.jsonl --assert-equal
//     build/release/examples/compare_losses a.jsonl b.jsonl --rtol 1e-3 --common
//
// Exits with 1 when they differ, with 2 when they cannot be compared.

#include <CLI/CLI.hpp>
#include <iostream>

#include "examples/loss_comparison.h"
#include "framework/runtime/error.h"

namespace moegrad::examples {
namespace {

int run(const std::string& a_path, const std::string& b_path, const ComparisonOptions& options) {
  const auto a = read_metrics(a_path);
  const auto b = read_metrics(b_path);
  const auto comparison = compare_losses(a, b, options);
  std::cout << to_string(a, b, options, comparison) << std::flush;
  return comparison.equal ? 0 : 1;
}

}  // namespace
}  // namespace moegrad::examples

int main(int argc, char** argv) {
  std::string a, b;
  moegrad::examples::ComparisonOptions options;
  CLI::App app("Compares the losses and gradient norms of two training runs.");
  app.add_option("a", a, "metrics of a run, one JSON object per line")->required();
  app.add_option("b", b, "metrics of another")->required();
  app.add_flag("--common", options.common, "only the steps that both have");
  auto* const limits = app.add_option_group("Limits", "--assert-equal, or a tolerance");
  limits->require_option(1, 2);
  auto* const bitwise =
      limits->add_flag("--assert-equal", options.bitwise, "equal to the last bit");
  limits->add_option("--rtol", options.rtol, "|a - b| may be this part of |a|, plus --atol")
      ->check(CLI::NonNegativeNumber)
      ->excludes(bitwise);
  limits->add_option("--atol", options.atol, "|a - b| may be this, plus --rtol's part of |a|")
      ->check(CLI::NonNegativeNumber)
      ->excludes(bitwise);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    return moegrad::examples::run(a, b, options);
  } catch (const moegrad::Error& error) {
    std::cerr << "compare_losses: " << error.what() << '\n';
    return 2;
  }
}
