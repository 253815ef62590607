// SPDX-License-Identifier: Apache-2.0

// Draws a training run, from the file that train --metrics writes, as one HTML page that
// any browser shows without a network:
//
//     build/release/tools/training_report metrics.jsonl -o report.html

#include <iostream>

#include "framework/io/output_file.h"
#include "framework/runtime/error.h"
#include "framework/runtime/program.h"
#include "tools/report/report_page.h"
#include "train/config/command_line.h"

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
  CommandLine line(
      "Draws a training run as one HTML page.",
      {path_option("metrics", metrics, PathKind::kInput, "of a run, one JSON object per line")
           .as_argument(),
       path_option("output", path, PathKind::kOutput, "where to write the page")
           .with_spelling("-o")});
  if (const auto exit_code = line.parse(argc, argv)) return *exit_code;
  return run(metrics, path);
}

}  // namespace
}  // namespace moegrad::tools

int main(int argc, char** argv) {
  using namespace moegrad::tools;
  return moegrad::run_program_once("training_report", [&] { return parse_and_run(argc, argv); });
}
