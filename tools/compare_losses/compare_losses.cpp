// SPDX-License-Identifier: Apache-2.0

// Compares the losses, gradient norms and validation losses of two training runs, step by step,
// from the files that train --metrics writes:
//
//     build/release/tools/compare_losses a.jsonl b.jsonl --assert-equal
//     build/release/tools/compare_losses a.jsonl b.jsonl --rtol 1e-3 --common
//
// Exits with 1 when they differ, with 2 when they cannot be compared.

#include <iostream>

#include "framework/runtime/error.h"
#include "framework/runtime/program.h"
#include "tools/compare_losses/loss_comparison.h"
#include "train/config/command_line.h"

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
  CommandLine line(
      "Compares the losses, gradient norms and validation losses of two training runs.",
      {path_option("a", a, PathKind::kInput, "metrics of a run, one JSON object per line")
           .as_argument(),
       path_option("b", b, PathKind::kInput, "metrics of another").as_argument(),
       flag_option("common", options.common, "only the steps and validation losses that both have"),
       flag_option("assert-equal", options.bitwise, "equal to the last bit"),
       number_option("rtol", options.rtol, {0, 1e30},
                     "|a - b| may be this part of |a|, plus --atol")
           .excluding("assert-equal"),
       number_option("atol", options.atol, {0, 1e30},
                     "|a - b| may be this, plus --rtol's part of |a|")
           .excluding("assert-equal")});
  line.require_one_of({"assert-equal", "rtol", "atol"});
  if (const auto exit_code = line.parse(argc, argv)) return *exit_code;
  return run(a, b, options);
}

}  // namespace
}  // namespace moegrad::tools

int main(int argc, char** argv) {
  using namespace moegrad::tools;
  return moegrad::run_program_once(
      "compare_losses", [&] { return parse_and_run(argc, argv); }, /*failure=*/2);
}
