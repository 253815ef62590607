// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "framework/runtime/program.h"
#include "train/config/command_line.h"

namespace moegrad::tools {

/// The main() of a tool in one of the frames of Note [Programs], run_program or run_program_once:
/// parses the options that `command_line` binds to an Options, then calls run(options). Returns the
/// exit code of the one that ends the tool.
template <class Options, class Run>
int tool_main(decltype(run_program)& frame, const std::string& name,
              training::CommandLine (*command_line)(Options&), Run run, int argc, char** argv,
              int failure = 1) {
  const auto body = [&]() -> int {
    Options options;
    auto line = command_line(options);
    const auto exit_code = line.parse(argc, argv);
    return exit_code ? *exit_code : run(options);
  };
  return frame(name, body, failure);
}

}  // namespace moegrad::tools
