// SPDX-License-Identifier: Apache-2.0

// Draws a training run, from the file that train_qwen3_moe --metrics writes, as one HTML page that
// any browser shows without a network:
//
//     build/release/examples/training_report metrics.jsonl -o report.html

#include <CLI/CLI.hpp>
#include <iostream>

#include "examples/output_file.h"
#include "examples/report/report_page.h"
#include "framework/runtime/error.h"

namespace moegrad::examples {
namespace {

int run(const std::string& metrics, const std::string& path) {
  const auto page = report_page(read_run_record(metrics));
  auto file = open_for_writing(path);
  file << page << std::flush;
  check(file.good(), "cannot write file '", path, "'");
  std::cout << "wrote " << path << ", " << page.size() << " bytes" << std::endl;
  return 0;
}

}  // namespace
}  // namespace moegrad::examples

int main(int argc, char** argv) {
  std::string metrics, path = "report.html";
  CLI::App app("Draws a training run as one HTML page.");
  app.add_option("metrics", metrics, "of a run, one JSON object per line")->required();
  app.add_option("-o,--output", path, "where to write the page")->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    return moegrad::examples::run(metrics, path);
  } catch (const moegrad::Error& error) {
    std::cerr << "training_report: " << error.what() << '\n';
    return 1;
  }
}
