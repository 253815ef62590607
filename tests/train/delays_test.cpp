// SPDX-License-Identifier: Apache-2.0

// What collectives read and fill belongs to them until their rank waits for them, and counts as
// long, however soon or late they are executed.

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <optional>
#include <ostream>
#include <string>
#include <variant>
#include <vector>

#include "framework/distributed/launch.h"
#include "framework/distributed/parallel_dims.h"
#include "framework/runtime/arena.h"
#include "fsdp/step_plan.h"
#include "models/causal_lm/loss.h"
#include "optim/adamw.h"
#include "parallel/expert/expert_parallel.h"
#include "parallel/tensor/parallelize_module.h"
#include "tests/framework/distributed/engine/message_ranks.h"
#include "tests/testing.h"
#include "tests/train/extreme_group.h"
#include "train/memory_plan.h"
#include "train/train_step.h"

namespace moegrad::training::delays_test {
namespace {

using namespace std::chrono_literals;
using namespace test;
using fsdp::Accumulation;

constexpr std::int64_t kTokens = 32, kSteps = 2;
constexpr std::uint64_t kSeeds = kSanitized ? 2 : 20;

struct Training {
  std::string name;
  ParallelDims dims;
  Accumulation accumulation;
  MemoryPlan memory;
  std::int64_t micro_batches;

  friend std::ostream& operator<<(std::ostream& out, const Training& training) {
    return out << training.name;
  }
};

const Training kTrainings[] = {
    {"shards",
     {.dp_shard = 2},
     Accumulation::kKeepUntilLast,
     {.recompute = "medium", .offload = "activations", .offload_window = 20000},
     4},
    {"experts", {.dp_shard = 2, .ep = 2}, Accumulation::kReduceEach, {.recompute = "light"}, 4},
    {"tiles", {.tp = 2, .ep = 2}, Accumulation::kKeepUntilLast, {.recompute = "full"}, 2},
    {"replicas", {.dp_replicate = 2, .dp_shard = 2}, Accumulation::kScatterEach, {}, 8},
    {"four_experts",
     {.dp_shard = 4, .ep = 2},
     Accumulation::kReduceEach,
     {.recompute = "full", .offload = "activations", .offload_window = 1},
     4},
    {"shards_of_tiles",
     {.dp_shard = 2, .tp = 2, .ep = 2},
     Accumulation::kReduceEach,
     {.recompute = "medium"},
     2},
};

/// How much memory a rank has used.
struct Use {
  std::array<std::int64_t, kMemoryTags> live = {}, highest_total = {}, highest = {};  // by tag
  std::int64_t blocks = 0;  // that came from the system

  friend bool operator==(const Use&, const Use&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Use& use) {
    for (std::size_t i = 0; i < kMemoryTags; ++i) {
      out << to_string(static_cast<MemoryTag>(i)) << ' ' << use.live[i] << '/'
          << use.highest_total[i] << '/' << use.highest[i] << ", ";
    }
    return out << use.blocks << " blocks";
  }
};

Use use_of(const Arena& arena) {
  Use use{.live = arena.live().bytes,
          .highest_total = arena.peak().bytes,
          .blocks = arena.system_allocations()};
  for (std::size_t i = 0; i < kMemoryTags; ++i) {
    use.highest[i] = arena.peak(static_cast<MemoryTag>(i));
  }
  return use;
}

/// What a rank has seen, by step.
struct Seen {
  std::vector<double> losses, norms;
  std::vector<Use> uses;

  friend bool operator==(const Seen&, const Seen&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Seen& seen) {
    for (std::size_t i = 0; i < seen.uses.size(); ++i) {
      out << "\n  step " << i << ", loss " << seen.losses[i] << ", norm " << seen.norms[i] << ": "
          << seen.uses[i];
    }
    return out;
  }
};

MicroBatch batch_of(std::int64_t step, std::int64_t index, std::int64_t vocabulary) {
  const Random random(static_cast<std::uint64_t>(100 * step + index), "delays test");
  std::vector<std::int64_t> ids;
  for (std::uint64_t i = 0; i <= kTokens; ++i) ids.push_back(random.integer(i, vocabulary));
  const std::span<const std::int64_t> all(ids);
  return {.tokens = Tensor::from(all.first(kTokens), {kTokens}),
          .targets = Tensor::from(all.last(kTokens), {kTokens}),
          .documents = Documents::of_lengths({kTokens / 4, kTokens - kTokens / 4})};
}

parallel::ParallelPlan plan_in_tiles(const models::CausalLMConfig& config, bool experts) {
  auto plan = tensor_plan(config, {.sequence_parallel = true, .expert_parallel = experts});
  for (auto& [path, style] : plan) {
    if (auto* const columns = std::get_if<parallel::ColwiseParallel>(&style)) columns->tiles = 2;
    auto* const rows = std::get_if<parallel::RowwiseParallel>(&style);
    if (rows != nullptr && !path.ends_with("embed_tokens")) rows->tiles = 2;
  }
  return plan;
}

fsdp::State& divide(models::CausalLM& model, const ParallelMeshes& meshes,
                    const Training& training) {
  if (training.dims.tp == 1) return shard_model(model, meshes, {});
  const bool experts = training.dims.ep > 1;
  if (experts) parallel::expert_parallel(model, meshes.expert, /*one_micro_batch=*/true);
  parallel::parallelize_module(model, meshes.dense["tp"], plan_in_tiles(model.config(), experts));
  return shard_model(model, meshes.fsdp(), {.expert_mesh = meshes.expert_fsdp()});
}

Seen train(RankContext& context, const std::shared_ptr<ProcessGroup>& group,
           const Training& training) {
  auto config = models::CausalLMConfig::preset("tiny");
  config.num_hidden_layers = 2;
  const auto meshes = make_meshes(group, training.dims);
  models::CausalLM model(config, 5);
  set_memory_plan(model, training.memory);
  auto& state = divide(model, meshes, training);
  optim::AdamW optimizer(model.named_parameters(), {.lr = 1e-3});
  fsdp::StepPlan plan(state, training.micro_batches, training.accumulation);
  const StepOptions options{.balance = {.z_loss_coef = 1e-3},
                            .tensor_ranks = meshes.dense.group("tp")};
  Seen seen;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    std::vector<MicroBatch> own;
    for (const auto index : plan.indices()) own.push_back(batch_of(step, index, config.vocab_size));
    context.arena()->reset_peak();
    const auto done = train_step(model, plan, own, options, optimizer);
    seen.losses.push_back(done.loss);
    seen.norms.push_back(done.grad_norm);
    seen.uses.push_back(use_of(*context.arena()));
  }
  return seen;
}

/// What each rank sees.
using All = std::vector<Seen>;

All train_on(const auto& launch_ranks, const Training& training) {
  All all(static_cast<std::size_t>(training.dims.ranks()));
  launch_ranks(training.dims.ranks(), [&](RankContext& context) {
    all[static_cast<std::size_t>(context.rank())] = train(context, context.group(), training);
  });
  return all;
}

All train_under(const LaunchOptions& options, const Training& training) {
  return train_on([&](int ranks, const auto& body) { launch(ranks, body, options); }, training);
}

/// Takes up blocks of all sizes that the arena has free, and looks whether they are in `memory`.
void expect_none_free(Arena& arena, const ByteParts& memory) {
  constexpr std::int64_t kMost = 128 << 10, kOfASize = 4;
  std::vector<std::pair<std::byte*, std::int64_t>> taken;
  for (std::int64_t size = 64; size <= kMost; size += std::max<std::int64_t>(64, size / 16)) {
    for (std::int64_t i = 0; i < kOfASize; ++i) {
      taken.emplace_back(arena.allocate(size, MemoryTag::kActivations), size);
    }
  }
  for (const auto& [block, size] : taken) {
    for (const auto& part : memory) {
      const auto* const end = part.data() + part.size();
      EXPECT_TRUE(part.empty() || end <= block || block + size <= part.data());
    }
    arena.deallocate(block, size, MemoryTag::kActivations);
  }
}

All train_at(Execution execution, bool looks, const Training& training) {
  All all(static_cast<std::size_t>(training.dims.ranks()));
  launch(training.dims.ranks(), [&](RankContext& context) {
    std::function<void(const ByteParts&)> look;
    if (looks) look = [&](const ByteParts& memory) { expect_none_free(*context.arena(), memory); };
    const auto calls = std::make_shared<HeldCalls>(execution, look);
    all[static_cast<std::size_t>(context.rank())] =
        train(context, std::make_shared<ExtremeGroup>(context.group(), calls), training);
  });
  return all;
}

class Delays : public ::testing::TestWithParam<Training> {};

TEST_P(Delays, GiveOnePeak) {
  const auto expected = train_under({}, GetParam());
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    EXPECT_EQ(train_under({.jitter = {.maximum = 50us, .seed = seed}}, GetParam()), expected);
  }
  EXPECT_EQ(train_under({.link = {.latency = 50us, .slow_rank = 1, .slow_by = 5}}, GetParam()),
            expected);
  EXPECT_EQ(train_at(Execution::kAtIssue, false, GetParam()), expected);
  EXPECT_EQ(train_at(Execution::kAtWait, false, GetParam()), expected);
}

TEST_P(Delays, GiveOnePeakWhereRanksSendMessages) {
  const auto train_on_messages = [](std::uint64_t seed) {
    return train_on(
        [&](int ranks, const auto& body) {
          launch_on_messages(ranks, body, {.jitter = {.maximum = 50us, .seed = seed}}, seed);
        },
        GetParam());
  };
  const auto expected = train_on_messages(0);
  for (std::uint64_t seed = 1; seed < 4; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    EXPECT_EQ(train_on_messages(seed), expected);
  }
}

TEST_P(Delays, NeverReuseWhatACollectiveHas) {
  const auto expected = train_under({}, GetParam());
  const auto all = train_at(Execution::kAtWait, true, GetParam());
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    EXPECT_EQ(all[rank].losses, expected[rank].losses);
    EXPECT_EQ(all[rank].norms, expected[rank].norms);
  }
}

INSTANTIATE_TEST_SUITE_P(Trainings, Delays, ::testing::ValuesIn(kTrainings),
                         [](const auto& training) { return training.param.name; });

}  // namespace
}  // namespace moegrad::training::delays_test
