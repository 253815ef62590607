// SPDX-License-Identifier: Apache-2.0

// Looks at the checkpoints that train_qwen3_moe writes:
//
//     build/release/examples/checkpoint_tool list ROOT
//     build/release/examples/checkpoint_tool verify ROOT-OR-CHECKPOINT
//     build/release/examples/checkpoint_tool diff A B
//     build/release/examples/checkpoint_tool export ROOT-OR-CHECKPOINT FOLDER
//
// Exit code 0: as it should be; 1: a checkpoint is damaged or absent, or two differ; 2: wrong
// usage.

#include <CLI/CLI.hpp>
#include <iostream>

#include "examples/checkpoint_report.h"
#include "framework/runtime/error.h"

namespace moegrad::examples {
namespace {

int run(int argc, char** argv) {
  CLI::App app("Looks at checkpoints of training runs.");
  app.require_subcommand(1);
  std::string first, second;
  bool good = true;
  const auto add = [&](const char* name, const char* what, const char* argument) {
    auto* const command = app.add_subcommand(name, what);
    command->add_option(argument, first)->required();
    return command;
  };
  add("list", "the checkpoints of a run, newest first", "root")->callback([&] {
    good = list_run(first, std::cout);
  });
  add("verify", "reads every file and compares its checksum", "path")->callback([&] {
    good = verify_checkpoints(first, std::cout);
  });
  auto* const diff = add("diff", "compares the parameters of two checkpoints", "a");
  diff->add_option("b", second)->required();
  diff->callback([&] { good = diff_checkpoints(first, second, std::cout); });
  auto* const exported =
      add("export", "writes the model as Hugging Face keeps it: config.json, safetensors", "path");
  exported->add_option("folder", second)->required();
  exported->callback([&] { export_checkpoint(first, second, std::cout); });
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return good ? 0 : 1;
}

}  // namespace
}  // namespace moegrad::examples

int main(int argc, char** argv) {
  try {
    return moegrad::examples::run(argc, argv);
  } catch (const moegrad::Error& error) {
    std::cerr << "checkpoint_tool: " << error.what() << '\n';
    return 1;
  }
}
