// SPDX-License-Identifier: Apache-2.0

// Trains a small Qwen3-MoE on a text over fully sharded ranks:
//
//     build/release/tools/train                       the King James text, 2 ranks
//     build/release/tools/train --text FILE --world-size 4 --micro-batches 4
//     build/release/tools/train --pack                whole documents, balanced
//     mpirun -n 2 build/release/tools/train           2 ranks, each a process
//
// The losses depend on the seed and the step alone, not on world size, threads or weight layout.

#include <cstdlib>
#include <iostream>

#include "framework/runtime/error.h"
#include "framework/runtime/mpi_environment.h"
#include "framework/runtime/program.h"
#include "train/config/option.h"
#include "train/config/train_options.h"
#include "train/data/open_data.h"
#include "train/dry_run.h"
#include "train/training_run.h"

namespace moegrad::tools {

using namespace training;

namespace {

// Reads the environment variables of the original switches, once and only here, as defaults of the
// flags.
void read_switch(const char* name, bool& value) {
  const char* text = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): before any thread
  if (text == nullptr) return;
  try {
    value = parse_boolean(name, text);
  } catch (const ValueError& error) {
    throw UsageError(error.what());
  }
  std::cerr << "environment: " << name << "=" << text << " taken as " << (value ? "on" : "off")
            << '\n';
}

int run(int argc, char** argv) {
  note_save_signals();
  TrainConfig options;
  options.parallel.world_size = default_world_size(options.parallel.world_size);
  read_switch("GROUPED_MATMUL_NZ_TRANSPOSE", options.model.grouped_matmul_nz_transpose);
  read_switch("LINEAR_ONLY_SHARD", options.parallel.linear_only_shard);
  if (const auto exit_code = parse_train_config(argc, argv, options)) return *exit_code;
  if (options.output.dry_run) {
    std::cout << dry_run_report(options);
    return 0;
  }
  const auto configuration = describe(options);
  std::cout << "configuration\n" << configuration << std::flush;
  note_stop_signals();
  const auto data = open_data(options.data, options.model_config().vocab_size, options.optim.seed);
  const int code = run_training(options, *data, {.stop_requested = [] { return stop_signal(); }});
  return code < 0 ? exit_code_of_signal(-code) : code;
}

}  // namespace
}  // namespace moegrad::tools

int main(int argc, char** argv) {
  using namespace moegrad::tools;
  return moegrad::run_program("train", [&] { return run(argc, argv); });
}
