// SPDX-License-Identifier: Apache-2.0

// Looks at the checkpoints that train writes:
//
//     build/release/tools/checkpoint_tool list ROOT
//     build/release/tools/checkpoint_tool verify ROOT-OR-CHECKPOINT
//     build/release/tools/checkpoint_tool diff A B
//     build/release/tools/checkpoint_tool export ROOT-OR-CHECKPOINT FOLDER
//
// Exit code 0: as it should be; 1: a checkpoint is damaged or absent, or two differ; 2: wrong
// usage.

#include <iostream>

#include "framework/runtime/program.h"
#include "tools/checkpoint_tool/checkpoint_report.h"
#include "train/config/command_line.h"

namespace moegrad::tools {

using namespace training;

namespace {

int run(int argc, char** argv) {
  std::string first, second;
  const auto input = [](const char* name, std::string& path) {
    return path_option(name, path, PathKind::kInput, "").as_argument();
  };
  CommandLine line("Looks at checkpoints of training runs.", {});
  line.add_command("list", "the checkpoints of a run, newest first", {input("root", first)});
  line.add_command("verify", "reads every file and compares its checksum", {input("path", first)});
  line.add_command("diff", "compares the parameters of two checkpoints",
                   {input("a", first), input("b", second)});
  line.add_command("export", "writes the model as Hugging Face keeps it: config.json, safetensors",
                   {input("path", first),
                    path_option("folder", second, PathKind::kExportFolder, "").as_argument()});
  if (const auto exit_code = line.parse(argc, argv)) return *exit_code;
  if (line.command() == "list") return list_run(first, std::cout) ? 0 : 1;
  if (line.command() == "verify") return verify_checkpoints(first, std::cout) ? 0 : 1;
  if (line.command() == "diff") return diff_checkpoints(first, second, std::cout) ? 0 : 1;
  export_checkpoint(first, second, std::cout);
  return 0;
}

}  // namespace
}  // namespace moegrad::tools

int main(int argc, char** argv) {
  using namespace moegrad::tools;
  return moegrad::run_program_once("checkpoint_tool", [&] { return run(argc, argv); });
}
