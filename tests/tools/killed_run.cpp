// SPDX-License-Identifier: Apache-2.0

// The training program, which kills itself as `kill -9` does when a rank comes by a point of saving
// for the nth time:
//
//     killed_run POINT RANK N TRAINING-OPTIONS...

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

#include "framework/runtime/error.h"
#include "framework/runtime/program.h"
#include "train/config/train_options.h"
#include "train/data/open_data.h"
#include "train/training_run.h"

namespace moegrad::tools {
namespace {

using namespace training;

int run(int argc, char** argv) {
  check<ValueError>(argc > 3, "usage: killed_run POINT RANK N TRAINING-OPTIONS...");
  const auto point = static_cast<CheckpointPoint>(std::atoi(argv[1]));
  const int rank = std::atoi(argv[2]);
  std::atomic<int> left = std::atoi(argv[3]);
  TrainConfig options;
  if (const auto exit_code = parse_train_config(argc - 3, argv + 3, options)) return *exit_code;
  const auto data = open_data(options.data, options.model_config().vocab_size, options.optim.seed);
  return run_training(options, *data, {.at_checkpoint_point = [&](int at_rank, CheckpointPoint at) {
                        if (at_rank == rank && at == point && --left == 0) kill(getpid(), SIGKILL);
                      }});
}

}  // namespace
}  // namespace moegrad::tools

int main(int argc, char** argv) {
  using namespace moegrad::tools;
  return moegrad::run_program("killed_run", [&] { return run(argc, argv); });
}
