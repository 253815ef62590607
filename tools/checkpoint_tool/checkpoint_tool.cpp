// SPDX-License-Identifier: Apache-2.0

// Looks at the checkpoints that train_qwen3_moe writes:
//
//     build/release/tools/checkpoint_tool list ROOT
//     build/release/tools/checkpoint_tool verify ROOT-OR-CHECKPOINT
//     build/release/tools/checkpoint_tool diff A B
//     build/release/tools/checkpoint_tool export ROOT-OR-CHECKPOINT FOLDER
//
// Exit code 0: as it should be; 1: a checkpoint is damaged or absent, or two differ; 2: wrong
// usage.

#include <CLI/CLI.hpp>
#include <functional>
#include <iostream>

#include "framework/runtime/program.h"
#include "tools/checkpoint_tool/checkpoint_report.h"
#include "train/config/program_options.h"

namespace moegrad::tools {

using namespace training;

namespace {

int run(int argc, char** argv) {
  CLI::App app("Looks at checkpoints of training runs.");
  app.require_subcommand(1);
  std::string first, second;
  std::function<bool()> command;
  const auto add = [&](const char* name, const char* what, const char* argument) {
    auto* const subcommand = app.add_subcommand(name, what);
    add_path(*subcommand, argument, first, PathKind::kInput, "")->required();
    return subcommand;
  };
  add("list", "the checkpoints of a run, newest first", "root")->callback([&] {
    command = [&] { return list_run(first, std::cout); };
  });
  add("verify", "reads every file and compares its checksum", "path")->callback([&] {
    command = [&] { return verify_checkpoints(first, std::cout); };
  });
  auto* const diff = add("diff", "compares the parameters of two checkpoints", "a");
  add_path(*diff, "b", second, PathKind::kInput, "")->required();
  diff->callback([&] { command = [&] { return diff_checkpoints(first, second, std::cout); }; });
  auto* const exported =
      add("export", "writes the model as Hugging Face keeps it: config.json, safetensors", "path");
  add_path(*exported, "folder", second, PathKind::kExportFolder, "")->required();
  exported->callback([&] {
    command = [&] {
      export_checkpoint(first, second, std::cout);
      return true;
    };
  });
  if (const auto exit_code = parse_options(app, argc, argv)) return *exit_code;
  return command() ? 0 : 1;
}

}  // namespace
}  // namespace moegrad::tools

int main(int argc, char** argv) {
  using namespace moegrad::tools;
  return moegrad::run_program("checkpoint_tool", [&] { return run(argc, argv); });
}
