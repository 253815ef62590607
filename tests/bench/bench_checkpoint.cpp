// SPDX-License-Identifier: Apache-2.0

// How long a training loop stands still for a checkpoint that is written in the background, against
// a plain copy of as many bytes:
//
//     build/release/tests/bench_checkpoint [--preset main] [--world-size 2] [--rounds 9] [--root
//     FOLDER]
//
// Saved are the parameters of a speed preset and AdamW's moments, sharded over the ranks. In each
// round all ranks copy their shards tensor by tensor into memory that they have used before, then
// save; "of copy" is the time of the one over the other. "first" is the first save, whose buffer
// the system has yet to give. "written" is how long the background took for all ranks' files, the
// flush to the disk included.

#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "framework/distributed/launch.h"
#include "framework/io/checkpoint_saver.h"
#include "framework/runtime/error.h"
#include "framework/runtime/program.h"
#include "framework/tensor/fill.h"
#include "framework/tensor/meta.h"
#include "optim/adamw.h"
#include "tests/bench/quantile.h"
#include "train/config/command_line.h"
#include "train/config/common_options.h"
#include "train/speed_preset.h"
#include "train/train_step.h"

namespace moegrad::bench {
namespace {

struct Options {
  std::string preset = "main";
  int ranks = 2;
  int rounds = 9;
  std::string root = std::filesystem::temp_directory_path() / "bench_checkpoint";
};

double milliseconds(const auto& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

void measure(const Options& options, RankContext& context) {
  std::optional<models::CausalLM> shapes;
  {
    const MetaGuard no_bytes;
    shapes.emplace(training::speed_preset(options.preset).config);
  }
  auto& model = *shapes;
  training::shard_model(model, DeviceMesh::flat(context.group()), {});
  model.to_empty();
  model.init_weights(1);
  const optim::AdamW optimizer(model.named_parameters(), {});
  CheckpointState state{.tensors = model.named_parameters()};
  for (const auto& tensor : optimizer.state_dict()) state.tensors.push_back(tensor);

  std::int64_t bytes = 0;
  std::vector<Tensor> copies;
  for (const auto& [name, tensor] : state.tensors) {
    bytes += tensor.numel() * size_of(tensor.dtype());
    copies.push_back(zeros_like(tensor));
  }
  const auto copy_all = [&] {
    for (std::size_t i = 0; i < copies.size(); ++i) {
      const auto& tensor = state.tensors[i].tensor;
      const auto size = static_cast<std::size_t>(tensor.numel() * size_of(tensor.dtype()));
      std::memcpy(copies[i].storage().data(), tensor.storage().data(), size);
    }
  };
  CheckpointSaver saver(options.root, context.group(), {.keep = 1});
  const double reserved = milliseconds([&] { saver.reserve(state); });
  std::vector<double> saves, copied, ratios, written;
  double first = 0;
  for (int round = 0; round <= options.rounds; ++round) {
    context.group()->barrier()->wait();
    const double copy = milliseconds(copy_all);
    context.group()->barrier()->wait();
    auto given = state;
    const double save = milliseconds([&] { saver.save(round, std::move(given)); });
    const double rest = milliseconds([&] { saver.wait(); });
    if (round == 0) {
      first = save;
      continue;
    }
    copied.push_back(copy);
    saves.push_back(save);
    ratios.push_back(save / copy);
    written.push_back(rest);
  }
  for (int rank = 0; rank < options.ranks; ++rank) {
    context.group()->barrier()->wait();
    if (rank != context.rank()) continue;
    const double megabytes = static_cast<double>(bytes) / 1e6;
    std::printf(
        "rank %d: %.1f MB, copy %.2f ms, save %.2f ms, of copy %.3f (first %.2f ms, reserved in "
        "%.0f "
        "ms), written in %.0f ms\n",
        rank, megabytes, median(copied), median(saves), median(ratios), first, reserved,
        median(written));
  }
}

int run(int argc, char** argv) {
  Options options;
  using namespace training;
  CommandLine line(
      "Time that saving a checkpoint in the background takes from training.",
      {text_option("preset", options.preset, "main, fine or tiny"),
       thread_ranks_option(options.ranks, 1024),
       number_option("rounds", options.rounds, {1, 1 << 20}, "medians of"),
       path_option("root", options.root, PathKind::kOutputFolder, "folder for the checkpoints")});
  if (const auto exit_code = line.parse(argc, argv)) return *exit_code;
  check_one_process();
  launch(options.ranks, [&](RankContext& context) { measure(options, context); });
  return 0;
}

}  // namespace
}  // namespace moegrad::bench

int main(int argc, char** argv) {
  return moegrad::run_program("bench_checkpoint", [&] { return moegrad::bench::run(argc, argv); });
}
