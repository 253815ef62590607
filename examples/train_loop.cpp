// SPDX-License-Identifier: Apache-2.0
// A training loop for a small Qwen3-MoE; lines (1) and (2) shard it over two ranks.
//
//     build/release/examples/train_loop [TEXT_FILE]       default: the King James text
//
// Expected: the loss falls from 5.7 to below 3 within 30 steps, in a few seconds.
#include <iostream>

#include "moegrad.h"
#include "train/data/text_data.h"

using namespace moegrad;

constexpr std::int64_t kSteps = 30;
constexpr std::int64_t kSequences = 8;  // per rank and step
constexpr std::int64_t kSequenceLength = 64;

void train_on(RankContext& rank, const training::TextData& data) {
  models::CausalLM model(models::CausalLMConfig::preset("tiny"), /*seed=*/1);
  const auto mesh = DeviceMesh::flat(rank.group());
  for (auto& layer : model.layers()) fsdp::fully_shard(layer, mesh);  // (1)
  fsdp::fully_shard(model, mesh);                                     // (2)
  optim::AdamW optimizer(model.named_parameters(), {.lr = 3e-3});
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const auto batch =
        data.training_batch(/*seed=*/1, step, rank.rank(), rank.world_size(), kSequences);
    const auto output = model(batch.tokens, batch.documents);
    const std::int64_t targets = batch.targets.numel();  // of this rank
    const auto loss = models::causal_lm_loss(output, batch.targets, rank.world_size() * targets,
                                             /*coefficient=*/0.01);
    optimizer.zero_grad();
    loss.objective.backward();
    optimizer.step();
    if (rank.rank() == 0) {
      std::cout << step << ' ' << loss.ce_sum.item() / static_cast<double>(targets) << '\n';
    }
  }
}

int run(int argc, char** argv) {
  const std::string text = argc > 1 ? argv[1] : "";
  if (argc > 2 || text.starts_with('-')) {
    std::cerr << "usage: train_loop [TEXT_FILE]   default: the King James text\n";
    return text == "--help" ? 0 : 2;
  }
  const training::TextData data(text, kSequenceLength);
  launch(/*world_size=*/2, [&](RankContext& rank) { train_on(rank, data); },
         {.exit_after = kProgramExitsAfter});
  return 0;
}

int main(int argc, char** argv) {
  return run_program("train_loop", [&] { return run(argc, argv); });
}
