// SPDX-License-Identifier: Apache-2.0
// A training loop of your own, sharded over ranks, that can be killed and resumed.
//
//     build/release/examples/own_training_loop TEXT CHECKPOINTS [RANKS]       default: 2 ranks
//     mpirun -n 4 build/release/examples/own_training_loop TEXT CHECKPOINTS   a process for each
//     rank
//
// Expected: the loss falls from 5.6 to about 3. Started again, the program continues from its
// newest checkpoint, also on another number of ranks. Ctrl-C or SIGUSR1 saves after the step.
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

// Runs this rank's micro-batches forward and backward. Returns the loss of the whole step.
double accumulate_gradients(models::CausalLM& model, fsdp::State& sharding, const std::string& text,
                            std::int64_t step, RankContext& rank) {
  const std::int64_t ranks = rank.world_size();
  const std::int64_t per_rank = (kMicroBatches + ranks - 1) / ranks;  // rounded up
  const std::int64_t first = rank.rank() * per_rank;
  const std::int64_t targets_of_step = kMicroBatches * kTokens;
  double loss = 0;
  for (std::int64_t i = first; i < first + per_rank; ++i) {
    const bool is_last = i == first + per_rank - 1;
    sharding.set_requires_gradient_sync(is_last);  // one reduction per step

    // Every rank must run the same number of micro-batches. Extra ones get weight 0.
    const double weight = i < kMicroBatches ? 1 : 0;
    const MicroBatch batch = make_micro_batch(text, step, i);
    const auto output = model(batch.tokens);
    const auto share = models::causal_lm_loss(output, batch.targets, targets_of_step,
                                              /*coefficient=*/0.01);
    (share.objective * weight).backward();
    loss += weight * share.ce_sum.item() / static_cast<double>(targets_of_step);
  }
  return all_reduce(*rank.group(), loss);
}

// Returns the program's exit code.
int train(RankContext& rank, const std::string& text, const std::string& folder) {
  std::optional<FolderLock> lock;
  if (rank.rank() == 0) lock.emplace(folder);  // keeps a second run out of the folder
  models::CausalLM model(models::CausalLMConfig::preset("tiny"), /*seed=*/1);
  const auto mesh = DeviceMesh::flat(rank.group());
  for (auto& layer : model.layers()) fsdp::fully_shard(layer, mesh);
  auto& sharding = fsdp::fully_shard(model, mesh);
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
    const double loss = accumulate_gradients(model, sharding, text, step, rank);
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
  check(argc == 3 || argc == 4, "usage: own_training_loop TEXT CHECKPOINTS [RANKS]");
  const std::string text = read_input_file(argv[1], "TEXT", /*most=*/1 << 30);
  check(std::ssize(text) > kTokens, "TEXT must be a file of more than ", kTokens, " bytes, got ",
        text.size());
  const std::string folder = argv[2];
  const int ranks =
      argc == 4 ? parse_number<int>("RANKS", argv[3], {1, 64}) : default_world_size(2);
  std::atomic<int> code = 0;
  launch_ranks(ranks, [&](RankContext& rank) { code = train(rank, text, folder); },
               {{.exit_after = kProgramExitsAfter}});
  return code;
}

int main(int argc, char** argv) {
  return run_program("own_training_loop", [&] { return run(argc, argv); });
}
