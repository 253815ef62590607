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
#include "tools/compare_losses/loss_comparison.h"
#include "tools/tool_main.h"

namespace moegrad::tools {

using namespace training;

namespace {

struct ProgramOptions {
  std::string a, b;
  ComparisonOptions comparison;
};

int run(const ProgramOptions& options) {
  const auto a = read_metrics(options.a);
  const auto b = read_metrics(options.b);
  const auto comparison = compare_losses(a, b, options.comparison);
  std::cout << to_string(a, b, options.comparison, comparison) << std::flush;
  return comparison.equal ? 0 : 1;
}

CommandLine command_line(ProgramOptions& options) {
  auto& comparison = options.comparison;
  CommandLine line(
      "Compares the losses, gradient norms and validation losses of two training runs.",
      {path_option("a", options.a, PathKind::kInput, "metrics of a run, one JSON object per line")
           .as_argument(),
       path_option("b", options.b, PathKind::kInput, "metrics of another").as_argument(),
       flag_option("common", comparison.common,
                   "only the steps and validation losses that both have"),
       flag_option("assert-equal", comparison.bitwise, "equal to the last bit"),
       number_option("rtol", comparison.rtol, {0, 1e30},
                     "|a - b| may be this part of |a|, plus --atol")
           .excluding("assert-equal"),
       number_option("atol", comparison.atol, {0, 1e30},
                     "|a - b| may be this, plus --rtol's part of |a|")
           .excluding("assert-equal")});
  line.require_one_of({"assert-equal", "rtol", "atol"});
  return line;
}

}  // namespace
}  // namespace moegrad::tools

int main(int argc, char** argv) {
  using namespace moegrad::tools;
  return tool_main(moegrad::run_program_once, "compare_losses", command_line, run, argc, argv,
                   /*failure=*/2);
}
