// SPDX-License-Identifier: Apache-2.0

// Draws a training run, from the file that train_qwen3_moe --metrics writes, as one HTML page that
// any browser shows without a network:
//
//     build/release/tools/training_report metrics.jsonl -o report.html

#include <CLI/CLI.hpp>
#include <iostream>

#include "framework/io/output_file.h"
#include "framework/runtime/error.h"
#include "framework/runtime/program.h"
#include "tools/report/report_page.h"
#include "train/config/program_options.h"

namespace moegrad::tools {

using namespace training;

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
}  // namespace moegrad::tools

int main(int argc, char** argv) {
  using namespace moegrad::tools;
  return moegrad::run_program("training_report", [&] { return parse_and_run(argc, argv); });
}
