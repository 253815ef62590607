// SPDX-License-Identifier: Apache-2.0

// Draws a training run, from the file that train_qwen3_moe --metrics writes, as one HTML page that
// any browser shows without a network:
//
//     build/release/examples/training_report metrics.jsonl -o report.html

#include <CLI/CLI.hpp>
#include <iostream>

#include "examples/output_file.h"
#include "examples/program.h"
#include "examples/program_options.h"
#include "examples/report/report_page.h"
#include "framework/runtime/error.h"

namespace moegrad::examples {
namespace {

int run(const std::string& metrics, const std::string& path) {
  const auto page = report_page(read_run_record(metrics));
  OutputFile file(path);
  file << page;
  file.finish();
  std::cout << "wrote " << path << ", " << page.size() << " bytes" << std::endl;
  return 0;
}

int parse_and_run(int argc, char** argv) {
  std::string metrics, path = "report.html";
  CLI::App app("Draws a training run as one HTML page.");
  add_path(app, "metrics", metrics, PathKind::kInput, "of a run, one JSON object per line")
      ->required();
  add_path(app, "-o,--output", path, PathKind::kOutput, "where to write the page");
  if (const auto exit_code = parse_options(app, argc, argv)) return *exit_code;
  return run(metrics, path);
}

}  // namespace
}  // namespace moegrad::examples

int main(int argc, char** argv) {
  using namespace moegrad::examples;
  return run_program("training_report", [&] { return parse_and_run(argc, argv); });
}
