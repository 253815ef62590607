// SPDX-License-Identifier: Apache-2.0
// The smallest honest training loop; lines (1) and (2) shard it over two ranks.
#include <iostream>

#include "examples/program.h"
#include "examples/text_data.h"
#include "framework/distributed/launch.h"
#include "fsdp/fully_shard.h"
#include "models/qwen3_moe_loss.h"
#include "optim/adamw.h"
using namespace moegrad;

void train(RankContext& rank, const examples::TextData& data) {
  models::Qwen3Moe model(models::Qwen3MoeConfig::preset("tiny"), /*seed=*/1);
  const auto mesh = DeviceMesh::flat(rank.group());
  for (auto& layer : model.layers()) fsdp::fully_shard(layer, mesh);  // (1)
  fsdp::fully_shard(model, mesh);                                     // (2)
  optim::AdamW optimizer(model.named_parameters(), {.lr = 3e-3});
  for (int step = 0; step < 30; ++step) {
    const auto batch = data.training_batch(/*seed=*/1, step, rank.rank(), rank.world_size(), 8);
    const auto output = model(batch.tokens, batch.cu_seqlens);
    const auto n = batch.targets.numel();  // targets per rank
    const auto loss = models::qwen3_moe_loss(output, batch.targets, rank.world_size() * n, 0.01);
    optimizer.zero_grad();
    loss.objective.backward();
    optimizer.step();
    if (rank.rank() == 0) std::cout << step << ' ' << loss.ce_sum.item() / double(n) << '\n';
  }
}

int train_on(int argc, char** argv) {
  const std::string text = argc > 1 ? argv[1] : "";
  if (argc > 2 || text.starts_with('-')) {
    std::cerr << "usage: train_loop [TEXT_FILE]   default: the King James text\n";
    return text == "--help" ? 0 : 2;
  }
  const examples::TextData data(text, /*sequence_length=*/64);
  launch(/*world_size=*/2, [&](RankContext& rank) { train(rank, data); },
         {.exit_after = kProgramExitsAfter});
  return 0;
}

int main(int argc, char** argv) {
  return examples::run_program("train_loop", [&] { return train_on(argc, argv); });
}
