// SPDX-License-Identifier: Apache-2.0
// Meshes some of whose ranks repeat the work of others: those of a pp axis, where nothing divides a
// model along it. Reports of a tp axis are in parallel/tensor/training_test.cpp.
#include <chrono>
#include <thread>

#include "framework/distributed/launch.h"
#include "framework/distributed/parallel_dims.h"
#include "framework/distributed/slow_rank_watch.h"
#include "tests/fsdp/models.h"
#include "tests/testing.h"
#include "train/data/windowed_data.h"
#include "train/evaluate.h"
#include "train/sample.h"
#include "train/train_step.h"

namespace moegrad::training::repeated_ranks_test {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::int64_t kMicroBatches = 4;

struct Reported {
  std::vector<StepResult> steps;
  double validation = 0;
  std::string text;
};

models::CausalLMConfig config() {
  auto config = test::sharded_toy_config();
  config.vocab_size = 256;
  return config;
}

/// What rank `watched` reports of two steps.
Reported run(const ParallelDims& dims, int watched) {
  std::string text;
  while (text.size() < 2000) text += "the quick brown fox jumps over the lazy dog; ";
  const WindowedData data(TextData(text, "fox", 16), {.sequences = 2, .validation_sequences = 6});
  Reported reported;
  launch(dims.ranks(), [&](RankContext& context) {
    models::CausalLM model(config(), 1);
    auto& state = shard_model(model, make_meshes(context.group(), dims), {});
    fsdp::StepPlan plan(state, kMicroBatches, fsdp::accumulation_on(dims));
    optim::AdamW optimizer(decay_matrices(model.named_parameters(), 1e-2, 0.1), {});
    Reported own;
    for (std::int64_t step = 0; step < 2; ++step) {
      const auto all = test::toy_batches(step, kMicroBatches, 256);
      own.steps.push_back(train_step(model, plan, plan.own(all),
                                     {.balance = {.tokens = BalancedTokens::kRanks}}, optimizer));
    }
    own.validation = evaluate(model, data, state.ranks());
    own.text = sample(model, "the q", 12, 16, 0.8, 5, state.ranks());
    if (context.rank() == watched) reported = std::move(own);
  });
  return reported;
}

TEST(RanksThatRepeatWork, ChangeNoReport) {
  for (const ParallelDims& without :
       {ParallelDims{}, ParallelDims{.dp_shard = 2}, ParallelDims{.dp_shard = 2, .ep = 2},
        ParallelDims{.dp_replicate = 2, .dp_shard = 2}}) {
    const auto expected = run(without, 0);
    for (const int pp : {2, 3}) {
      auto dims = without;
      dims.pp = pp;
      for (const int watched : {0, dims.ranks() - 1}) {
        SCOPED_TRACE(to_string(dims) + ", rank " + std::to_string(watched));
        const auto got = run(dims, watched);
        for (std::size_t i = 0; i < expected.steps.size(); ++i) {
          const auto &a = expected.steps[i], &b = got.steps[i];
          EXPECT_EQ(b.loss, a.loss);
          EXPECT_EQ(b.ce, a.ce);
          EXPECT_EQ(b.grad_norm, a.grad_norm);
          EXPECT_EQ(b.tokens, a.tokens);
          EXPECT_EQ(b.model_flops, a.model_flops);
          EXPECT_EQ(b.router_entropy, a.router_entropy);
          EXPECT_EQ(b.tokens_per_expert, a.tokens_per_expert);
        }
        EXPECT_EQ(got.validation, expected.validation);
        EXPECT_EQ(got.text, expected.text);
      }
    }
  }
}

// Stages do unequal work, so each is compared within itself; a report names ranks of the launch.
TEST(RanksThatRepeatWork, AreComparedWithinTheirStage) {
  constexpr ParallelDims kDims{.dp_shard = 2, .tp = 2, .pp = 2};
  constexpr int kSlow = 6;
  std::vector<std::vector<SlowRank>> slow(static_cast<std::size_t>(kDims.ranks()));
  launch(kDims.ranks(), [&](RankContext& context) {
    const auto meshes = make_meshes(context.group(), kDims);
    SlowRankWatch watch(context, meshes.stage);
    const bool second_stage = context.rank() >= 4;
    for (int window = 0; window < kSlowWindows; ++window) {
      {
        const WorkGuard work(WorkClass::kCompute);
        std::this_thread::sleep_for(second_stage ? 300ms : 100ms);
        if (context.rank() == kSlow) std::this_thread::sleep_for(600ms);
      }
      auto& own = slow[static_cast<std::size_t>(context.rank())];
      for (const auto& named : watch.close_window()) own.push_back(named);
    }
  });
  for (std::size_t rank = 0; rank < slow.size(); ++rank) {
    if (rank < 4) {
      EXPECT_THAT(slow[rank], IsEmpty()) << rank;
    } else {
      EXPECT_THAT(slow[rank], ElementsAre(::testing::Field(&SlowRank::rank, kSlow))) << rank;
    }
  }
}

}  // namespace
}  // namespace moegrad::training::repeated_ranks_test
