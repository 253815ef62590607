// SPDX-License-Identifier: Apache-2.0
// A user's own training loop, sharded, that can be killed; docs/tutorial.md goes through it.
//     build/release/examples/own_training_loop TEXT CHECKPOINTS [RANKS]
// Expected: the loss falls from 5.6 to below 3. Started again, it resumes from the last checkpoint.
#include <iostream>

#include "moegrad.h"

using namespace moegrad;

constexpr std::int64_t kSteps = 60, kTokens = 128, kMicroBatches = 8;  // a power of two

// Micro-batch i of a step, int64 [kTokens + 1]: where it begins depends on its number alone.
Tensor micro_batch(const std::string& text, std::int64_t step, std::int64_t i) {
  const auto number = static_cast<std::uint64_t>(step * kMicroBatches + i);
  const auto begin = Random(/*seed=*/1, "batches").integer(number, std::ssize(text) - kTokens);
  std::vector<std::int64_t> bytes;
  for (const char c : text.substr(begin, kTokens + 1))
    bytes.push_back(static_cast<unsigned char>(c));
  return Tensor::from(bytes, {kTokens + 1});
}

// Gradients are sums: the share of one micro-batch is divided by the targets of the whole step.
double step_of(models::Qwen3Moe& model, fsdp::State& state, const std::string& text,
               std::int64_t step, RankContext& rank) {
  const auto each = (kMicroBatches + rank.world_size() - 1) / rank.world_size();  // rounded up
  double loss = 0;
  for (std::int64_t i = rank.rank() * each; i < (rank.rank() + 1) * each; ++i) {
    state.set_requires_gradient_sync((i + 1) % each == 0);  // one reduction, after the last
    const double weight = i < kMicroBatches ? 1 : 0;        // beyond the last one: for nothing
    const Tensor all = micro_batch(text, step, i), targets = ops::narrow(all, 0, 1, kTokens);
    const auto output = model(ops::narrow(all, 0, 0, kTokens));
    const auto share = models::qwen3_moe_loss(output, targets, kMicroBatches * kTokens, 0.01);
    (share.objective * weight).backward();
    loss += weight * share.ce_sum.item() / double(kMicroBatches * kTokens);
  }
  return all_reduce(*rank.group(), loss);
}

void train(RankContext& rank, const std::string& text, const std::string& folder,
           const FolderLock& lock) {
  models::Qwen3Moe model(models::Qwen3MoeConfig::preset("tiny"), /*seed=*/1);
  const auto mesh = DeviceMesh::flat(rank.group());
  for (auto& layer : model.layers()) fsdp::fully_shard(layer, mesh);
  auto& state = fsdp::fully_shard(model, mesh);
  optim::AdamW optimizer(model.named_parameters(), {.weight_decay = 0.1});
  const auto schedule = optim::cosine_with_warmup(/*peak=*/4e-3, /*warmup=*/6, kSteps);

  CheckpointState all{.tensors = model.named_parameters()};
  for (const auto& tensor : optimizer.state_dict()) all.tensors.push_back(tensor);
  const auto warn = [](const std::string& reason) { log(LogLevel::kWarning, reason); };
  auto checkpoint = open_newest_checkpoint(folder, rank.group(), warn);
  if (checkpoint) checkpoint->read_all(all.tensors);
  CheckpointSaver saver(folder, rank.group(), {.lock = &lock});

  for (std::int64_t step = checkpoint ? checkpoint->manifest().step : 0; step < kSteps; ++step) {
    optimizer.set_lr(schedule(step));
    optimizer.zero_grad();
    const double loss = step_of(model, state, text, step, rank);
    optim::clip_grad_norm(model.named_parameters(), 1.0);
    optimizer.step();
    if (rank.rank() == 0) std::cout << "step " << step << " loss " << loss << std::endl;
    if ((step + 1) % 10 == 0) saver.save(step + 1, all);
  }
}

int run(int argc, char** argv) {
  check(argc == 3 || argc == 4, "usage: own_training_loop TEXT CHECKPOINTS [RANKS]");
  const auto text = read_input_file(argv[1], "TEXT", /*most=*/1 << 30);
  check(std::ssize(text) > kTokens, "TEXT must be a file of more than ", kTokens, " bytes");
  const int ranks = argc == 4 ? parse_number<int>("RANKS", argv[3], {1, 64}) : 2;
  const FolderLock lock(argv[2]);  // against another run in that folder
  launch(ranks, [&](RankContext& rank) { train(rank, text, argv[2], lock); },
         {.exit_after = kProgramExitsAfter});
  return 0;
}

int main(int argc, char** argv) {
  return run_program("own_training_loop", [&] { return run(argc, argv); });
}
