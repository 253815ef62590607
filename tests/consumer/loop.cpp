// SPDX-License-Identifier: Apache-2.0
// A training loop of the user's own, with the losses and gradient norms of the program `train`, bit
// for bit, on any ranks and after a stop:
//     loop TEXT CHECKPOINTS RANKS EXPERT_RANKS STEPS
// It needs moegrad.h alone. The windows of the text come from moegrad::train here, because they
// must be those of `train`.
#include <iostream>

#include "moegrad.h"
#include "train/data/windowed_data.h"
using namespace moegrad;

constexpr std::int64_t kSteps = 10, kMicroBatches = 4, kSequences = 2, kTokens = 32;
constexpr std::int64_t kTargets = kMicroBatches * kSequences * kTokens;  // of a step

// Trains up to step `until`, from the newest checkpoint on.
void train(RankContext& rank, const ParallelDims& dims, const training::StepData& data,
           const std::string& folder, std::int64_t until) {
  models::CausalLM model(models::CausalLMConfig::preset("tiny"), /*seed=*/1);
  const auto meshes = make_meshes(rank.group(), dims);
  parallel::expert_parallel(model, meshes.expert);  // if dims.ep is 1, it divides nothing
  const fsdp::Policy policy = {.expert_mesh = meshes.expert_fsdp()};
  for (auto& layer : model.layers()) fsdp::fully_shard(layer, meshes.fsdp(), policy);
  auto& root = fsdp::fully_shard(model, meshes.fsdp(), policy);

  std::vector<optim::ParamGroup> groups = {{.weight_decay = 0.1}, {.weight_decay = 0}};
  for (auto& p : model.named_parameters()) groups[p.tensor.ndim() < 2].parameters.push_back(p);
  optim::AdamW optimizer(groups, {.beta2 = 0.95});

  auto state = model.state_dict();  // it shares the elements with the model and the optimizer
  for (const auto& tensor : optimizer.state_dict()) state.push_back(tensor);
  auto checkpoint = open_newest_checkpoint(folder, rank.group());
  if (checkpoint) checkpoint->read_all(state);

  fsdp::StepPlan plan(root, kMicroBatches, fsdp::accumulation_on(dims));
  for (auto step = checkpoint ? checkpoint->manifest().step : 0; step < until; ++step) {
    optimizer.set_lr(optim::cosine_with_warmup(/*lr=*/4e-3, /*warmup_steps=*/2, kSteps)(step));
    optimizer.zero_grad();
    std::vector<double> losses;
    for (const auto& turn : plan.turns()) {
      const auto [tokens, targets, documents] = data.micro_batch(step, turn.index);
      const auto share = models::causal_lm_loss(model(tokens, documents), targets, kTargets,
                                                /*coefficient=*/0.01, {.per_layer = true});
      plan.backward(turn, share.objective);
      losses.push_back(share.objective.item());
    }
    const double loss = plan.sum(losses), norm = optim::clip_grad_norm(model.named_parameters(), 1);
    optimizer.step();
    if (rank.rank() == 0) std::cout << step << std::hexfloat << ' ' << loss << ' ' << norm << '\n';
    if (step % 4 == 3) write_checkpoint(folder, step + 1, {.tensors = state}, rank.group());
  }
}

int main(int argc, char** argv) {
  return run_program("loop", [&] {
    check(argc == 6, "must be called as loop TEXT CHECKPOINTS RANKS EXPERT_RANKS STEPS");
    const training::WindowedData data(training::TextData(argv[1], kTokens),
                                      {.micro_batches = kMicroBatches, .sequences = kSequences});
    const ParallelDims dims = {.dp_shard = std::stoi(argv[3]), .ep = std::stoi(argv[4])};
    launch(dims.ranks(),
           [&](RankContext& rank) { train(rank, dims, data, argv[2], std::stoll(argv[5])); });
    return 0;
  });
}
