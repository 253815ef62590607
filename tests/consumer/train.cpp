// SPDX-License-Identifier: Apache-2.0
// A training program of the user's own, sharded and resumable, with the same bits on any ranks:
//     train TEXT CHECKPOINTS RANKS STEPS
#include "train/train.h"

#include <iostream>

#include "moegrad.h"
using namespace moegrad;

constexpr std::int64_t kSteps = 16;

// Trains up to step `until`.
void train_on(RankContext& rank, const training::TrainingData& data, const std::string& folder,
              std::int64_t until) {
  models::CausalLM model(models::CausalLMConfig::preset("tiny"), /*seed=*/1);
  auto& root = training::shard_model(model, DeviceMesh::flat(rank.group()), {});
  optim::AdamW optimizer(model.named_parameters(), {.weight_decay = 0.1});
  const auto schedule = optim::cosine_with_warmup(/*peak=*/4e-3, /*warmup=*/3, kSteps);
  training::TrainState state{model, optimizer};
  training::TrainCheckpoints checkpoints(folder, state, {.interval = 4});
  checkpoints.resume();

  fsdp::StepPlan plan(root, data.micro_batches());
  training::StepLoader loader(data, plan.indices());
  while (state.step < until) {
    optimizer.set_lr(schedule(state.step));
    const auto batches = loader.batches(state.step);
    const auto result = training::train_step(model, plan, batches, {.step = state.step}, optimizer);
    ++state.step;
    checkpoints.after_step();
    if (rank.rank() != 0) continue;
    std::cout << std::hexfloat << state.step << ' ' << result.loss << ' ' << result.grad_norm
              << '\n';
  }
  checkpoints.save();  // unless after_step() has saved this step
  check(checkpoints.finish(), "some checkpoint in ", folder, " could not be written");
  const double validation = training::evaluate(model, data, root.ranks());
  if (rank.rank() == 0) std::cout << "validation " << validation << '\n';
}

int main(int argc, char** argv) {
  return run_program("train", [&] {
    check(argc == 5, "must be called as train TEXT CHECKPOINTS RANKS STEPS");
    const training::WindowedData data(
        training::TextData(argv[1], /*sequence_length=*/32),
        {.micro_batches = 4, .sequences = 2, .validation_sequences = 6});
    launch(std::stoi(argv[3]),
           [&](RankContext& rank) { train_on(rank, data, argv[2], std::stoll(argv[4])); });
    return 0;
  });
}
