// SPDX-License-Identifier: Apache-2.0

// Draws a training run, from the file that train --metrics writes, as one HTML page that
// any browser shows without a network:
//
//     build/release/tools/training_report metrics.jsonl -o report.html

#include <iostream>

#include "framework/io/output_file.h"
#include "framework/runtime/error.h"
#include "tools/report/report_page.h"
#include "tools/tool_main.h"

namespace moegrad::tools {

using namespace training;

namespace {

struct ReportOptions {
  std::string metrics, page = "report.html";
};

int run(const ReportOptions& options) {
  const auto page = report_page(read_run_record(options.metrics));
  OutputFile file(options.page);
  file << page;
  file.finish();
  std::cout << "wrote " << options.page << ", " << page.size() << " bytes" << std::endl;
  return 0;
}

CommandLine command_line(ReportOptions& options) {
  return {"Draws a training run as one HTML page.",
          {path_option("metrics", options.metrics, PathKind::kInput,
                       "of a run, one JSON object per line")
               .as_argument(),
           path_option("output", options.page, PathKind::kOutput, "where to write the page")
               .with_spelling("-o")}};
}

}  // namespace
}  // namespace moegrad::tools

int main(int argc, char** argv) {
  using namespace moegrad::tools;
  return tool_main(moegrad::run_program_once, "training_report", command_line, run, argc, argv);
}
