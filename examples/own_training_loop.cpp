// SPDX-License-Identifier: Apache-2.0
// A training loop of your own, sharded over ranks, that can be killed and resumed.
//
//     build/release/examples/own_training_loop TEXT CHECKPOINTS [RANKS [EXPERT_RANKS]]
//     mpirun -n 4 build/release/examples/own_training_loop TEXT CHECKPOINTS   a process for each
//     rank
//
// By default there are 2 ranks, and each has all experts. With EXPERT_RANKS so many ranks have them
// between them. Expected: the loss falls from 5.6 to about 3. Started again, the program continues
// from its newest checkpoint, also on another number of ranks. Ctrl-C or SIGUSR1 saves after the
// step.
#include <atomic>
#include <iostream>

#include "moegrad.h"
#include "moegrad_mpi.h"

using namespace moegrad;

constexpr std::int64_t kSteps = 60;
constexpr std::int64_t kMicroBatches = 8;  // per step; a power of two
constexpr std::int64_t kTokens = 128;      // per micro-batch
constexpr std::int64_t kCheckpointInterval = 10;

struct MicroBatch {
  Tensor tokens;   // int64 [kTokens]
  Tensor targets;  // int64 [kTokens], the bytes that follow
};

// Micro-batch `index` of a step. Where it begins depends on its number in the run alone.
MicroBatch make_micro_batch(const std::string& text, std::int64_t step, std::int64_t index) {
  const Random random(/*seed=*/1, "batches");
  const auto number = static_cast<std::uint64_t>(step * kMicroBatches + index);
  const std::int64_t begin = random.integer(number, std::ssize(text) - kTokens);
  std::vector<std::int64_t> bytes;
  for (const char c : text.substr(begin, kTokens + 1)) {
    bytes.push_back(static_cast<unsigned char>(c));
  }
  const Tensor window = Tensor::from(bytes, {kTokens + 1});
  return {.tokens = ops::narrow(window, 0, 0, kTokens),
          .targets = ops::narrow(window, 0, 1, kTokens)};
}

// Runs this rank's micro-batches forward and backward. Returns the loss of the whole step. The plan
// says which micro-batches these are and when gradients are reduced, and adds in one order. By
// hand: `set_requires_gradient_sync` before each backward, `all_reduce` of the losses, and a choice
// of micro-batches that keeps the bits on any number of ranks.
double accumulate_gradients(models::CausalLM& model, fsdp::StepPlan& plan, const std::string& text,
                            std::int64_t step) {
  constexpr std::int64_t kTargets = kMicroBatches * kTokens;  // of the step
  std::vector<double> losses;
  for (const auto& turn : plan.turns()) {
    const MicroBatch batch = make_micro_batch(text, step, turn.index);
    const auto output = model(batch.tokens);
    const auto share = models::causal_lm_loss(output, batch.targets, kTargets,
                                              /*coefficient=*/0.01);
    plan.backward(turn, share.objective);
    losses.push_back(share.ce_sum.item() / static_cast<double>(kTargets));
  }
  return plan.sum(losses);
}

// Divides the model's experts, if ranks are to share them, and shards it over all ranks.
fsdp::State& shard(models::CausalLM& model, const ParallelMeshes& meshes) {
  fsdp::Policy policy;
  if (meshes.expert.size("ep") > 1) {
    parallel::expert_parallel(model, meshes.expert);
    policy.expert_mesh = meshes.expert_fsdp();
  }
  for (auto& layer : model.layers()) fsdp::fully_shard(layer, meshes.fsdp(), policy);
  return fsdp::fully_shard(model, meshes.fsdp(), policy);
}

// Returns the program's exit code.
int train(RankContext& rank, const std::string& text, const std::string& folder, int expert_ranks) {
  std::optional<FolderLock> lock;
  if (rank.rank() == 0) lock.emplace(folder);  // keeps a second run out of the folder
  models::CausalLM model(models::CausalLMConfig::preset("tiny"), /*seed=*/1);
  const ParallelDims dims{.dp_shard = rank.world_size(), .ep = expert_ranks};
  fsdp::StepPlan plan(shard(model, make_meshes(rank.group(), dims)), kMicroBatches,
                      fsdp::accumulation_on(dims));
  optim::AdamW optimizer(model.named_parameters(), {.weight_decay = 0.1});
  const auto schedule = optim::cosine_with_warmup(/*lr=*/4e-3, /*warmup_steps=*/6, kSteps);

  const auto state = [&] {
    NamedTensors tensors = model.state_dict();
    for (const auto& tensor : optimizer.state_dict()) tensors.push_back(tensor);
    return tensors;
  };

  std::int64_t first_step = 0;
  const auto warn = [](const std::string& reason) { log(LogLevel::kWarning, reason); };
  if (auto checkpoint = open_newest_checkpoint(folder, rank.group(), warn)) {
    checkpoint->read_all(state());
    first_step = checkpoint->manifest().step;
  }
  CheckpointSaver saver(folder, rank.group(), {.lock = lock ? &*lock : nullptr});

  for (std::int64_t step = first_step; step < kSteps; ++step) {
    optimizer.set_lr(schedule(step));
    optimizer.zero_grad();
    const double loss = accumulate_gradients(model, plan, text, step);
    optim::clip_grad_norm(model.named_parameters(), /*max_norm=*/1.0);
    optimizer.step();
    if (rank.rank() == 0) std::cout << "step " << step << " loss " << loss << std::endl;

    // A signal may come to one rank alone, so the ranks agree on it.
    const auto signal = all_reduce<std::int64_t>(*rank.group(), stop_signal(), ReduceOp::kMax);
    if (signal != 0 || (step + 1) % kCheckpointInterval == 0) {
      saver.save(step + 1, {.tensors = state()});
    }
    if (signal != 0) return exit_code_of_signal(static_cast<int>(signal));
  }
  return 0;
}

int run(int argc, char** argv) {
  note_stop_signals();
  check(3 <= argc && argc <= 5, "usage: own_training_loop TEXT CHECKPOINTS [RANKS [EXPERT_RANKS]]");
  const std::string text = read_input_file(argv[1], "TEXT", /*most=*/1 << 30);
  check(std::ssize(text) > kTokens, "TEXT must be a file of more than ", kTokens, " bytes, got ",
        text.size());
  const std::string folder = argv[2];
  const int ranks =
      argc >= 4 ? parse_number<int>("RANKS", argv[3], {1, 64}) : default_world_size(2);
  const int expert_ranks = argc == 5 ? parse_number<int>("EXPERT_RANKS", argv[4], {1, ranks}) : 1;
  std::atomic<int> code = 0;
  launch_ranks(ranks, [&](RankContext& rank) { code = train(rank, text, folder, expert_ranks); },
               {.exit_after = kProgramExitsAfter});
  return code;
}

int main(int argc, char** argv) {
  return run_program("own_training_loop", [&] { return run(argc, argv); });
}
