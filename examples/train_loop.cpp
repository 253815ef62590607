// SPDX-License-Identifier: Apache-2.0
// The smallest honest training loop: data, model, loss, backward(), step(). Sharding it over two
// ranks takes the two lines marked (1) and (2).
#include <iostream>

#include "examples/text_data.h"
#include "framework/distributed/launch.h"
#include "fsdp/fully_shard.h"
#include "models/qwen3_moe.h"
#include "models/qwen3_moe_loss.h"
#include "optim/adamw.h"
using namespace moegrad;

int main(int argc, char** argv) {
  if (argc > 2 || (argc == 2 && argv[1][0] == '-')) {
    std::cerr << "usage: train_loop [TEXT]   (default: the King James text)\n";
    return argc == 2 && std::string_view(argv[1]) == "--help" ? 0 : 2;
  }
  const examples::TextData data(argc == 2 ? argv[1] : "", /*sequence_length=*/64);
  launch(/*world_size=*/2, [&](RankContext& rank) {
    models::Qwen3Moe model(models::Qwen3MoeConfig::preset("tiny"), /*seed=*/1);
    const auto mesh = DeviceMesh::flat(rank.group());
    for (auto& layer : model.layers()) fsdp::fully_shard(layer, mesh);  // (1)
    fsdp::fully_shard(model, mesh);                                     // (2)
    optim::AdamW optimizer(model.named_parameters(), {.lr = 3e-3});

    for (int step = 0; step < 30; ++step) {
      const auto batch = data.training_batch(/*seed=*/1, step, rank.rank(), rank.world_size(), 8);
      const auto output = model(batch.tokens, batch.cu_seqlens);
      const auto loss = models::qwen3_moe_loss(output, batch.targets,
                                               rank.world_size() * batch.targets.numel(), 0.001);
      optimizer.zero_grad();
      loss.objective.backward();
      optimizer.step();
      if (rank.rank() == 0) {
        const auto tokens = static_cast<double>(batch.targets.numel());
        std::cout << "step " << step << " loss " << loss.ce_sum.item() / tokens << '\n';
      }
    }
  });
}
