// SPDX-License-Identifier: Apache-2.0
// A training loop of the user's own, with the experts of each layer on several ranks:
//     experts RANKS EP
#include <iostream>

#include "moegrad.h"
using namespace moegrad;

constexpr std::int64_t kSteps = 4, kMicroBatches = 4, kTokens = 32;

// Numbers that repeat, other ones in each micro-batch.
Tensor make_tokens(std::int64_t step, std::int64_t micro_batch) {
  std::vector<std::int64_t> tokens;
  for (std::int64_t i = 0; i <= kTokens; ++i) {
    tokens.push_back((step * kMicroBatches + micro_batch + i * i) % 7);
  }
  return Tensor::from(tokens, {kTokens + 1});
}

void train(RankContext& rank, int ep) {
  models::CausalLM model(models::CausalLMConfig::preset("tiny"), /*seed=*/1);
  const auto group = rank.group();
  const auto meshes = make_meshes(group, {.dp_shard = -1, .ep = ep});
  parallel::expert_parallel(model, meshes.expert);                    // first line
  const fsdp::Policy policy = {.expert_mesh = meshes.expert_fsdp()};  // second line
  for (auto& layer : model.layers()) fsdp::fully_shard(layer, meshes.fsdp(), policy);
  fsdp::fully_shard(model, meshes.fsdp(), policy);
  optim::AdamW optimizer(model.named_parameters(), {.lr = 1e-3});

  for (std::int64_t step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    for (std::int64_t i = rank.rank(); i < kMicroBatches; i += rank.world_size()) {
      const Tensor tokens = make_tokens(step, i);
      const auto output = model(ops::narrow(tokens, 0, 0, kTokens));
      const auto loss = models::causal_lm_loss(output, ops::narrow(tokens, 0, 1, kTokens),
                                               kMicroBatches * kTokens, /*coefficient=*/0.01);
      loss.objective.backward();
    }
    const double norm = optim::clip_grad_norm(model.named_parameters(), /*max_norm=*/1.0);
    optimizer.step();
    if (rank.rank() == 0) std::cout << std::hexfloat << norm << '\n';
  }
}

int main(int argc, char** argv) {
  return run_program("experts", [&] {
    check(argc == 3, "must be called as experts RANKS EP");
    launch(std::stoi(argv[1]), [&](RankContext& rank) { train(rank, std::stoi(argv[2])); });
    return 0;
  });
}
