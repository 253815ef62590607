// SPDX-License-Identifier: Apache-2.0
#include "fsdp/step_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "framework/autograd/micro_batch.h"
#include "framework/distributed/launch.h"
#include "framework/runtime/error.h"
#include "ops/reduce.h"
#include "optim/clip_grad_norm.h"
#include "tests/fsdp/models.h"
#include "tests/testing.h"

namespace moegrad::fsdp::step_plan_test {
namespace {

using test::message_of;
using Indices = std::vector<std::int64_t>;

/// The micro-batches of a rank that count.
Indices indices(std::int64_t micro_batches, const GridPosition& position,
                Accumulation accumulation) {
  Indices all;
  for (const auto& turn : turns_of(micro_batches, position, accumulation)) {
    if (!turn.idle) all.push_back(turn.index);
  }
  return all;
}

constexpr GridPosition kPosition = {.replica = 1, .replicas = 2, .shard = 0, .shards = 2};

TEST(Ranks, ComputeEquallyWhereMicroBatchesDivideAndNobodyHasOthersExperts) {
  EXPECT_TRUE(ranks_compute_equally({}, 3));
  EXPECT_TRUE(ranks_compute_equally({.dp_replicate = 2, .dp_shard = 2}, 8));
  EXPECT_FALSE(ranks_compute_equally({.dp_replicate = 2, .dp_shard = 2}, 6));
  EXPECT_FALSE(ranks_compute_equally({.dp_shard = 4, .ep = 2}, 8));
}

TEST(Turns, AreASubtreeWhenGradientsAreKept) {
  EXPECT_EQ(indices(16, kPosition, Accumulation::kKeepUntilLast), (Indices{8, 9, 10, 11}));
}

TEST(Turns, AreOneOfEachRoundWhenEachIsReduced) {
  EXPECT_EQ(indices(16, kPosition, Accumulation::kReduceEach), (Indices{2, 6, 10, 14}));
}

TEST(Turns, AreOneOfEachRoundOfTheReplicaWhenEachIsScattered) {
  EXPECT_EQ(indices(16, kPosition, Accumulation::kScatterEach), (Indices{8, 10, 12, 14}));
}

TEST(Turns, ArePairsOfEachRoundWhenPairsAreReduced) {
  EXPECT_EQ(indices(16, kPosition, Accumulation::kReducePairs), (Indices{4, 5, 12, 13}));
}

TEST(Turns, AreEachOwnedOnceAndTheRestIsIdle) {
  for (const auto accumulation : {Accumulation::kKeepUntilLast, Accumulation::kReduceEach,
                                  Accumulation::kScatterEach, Accumulation::kReducePairs}) {
    const int members = accumulation == Accumulation::kReducePairs ? 2 : 1;
    for (const int replicas : {1, 2, 3}) {
      for (const int shards : {1, 3, 4}) {
        for (const std::int64_t count : {1, 4, 8, 24, 32}) {
          Indices all;
          int idle_ones = 0;
          const auto ranks = replicas * shards;
          for (int rank = 0; rank < ranks; ++rank) {
            const GridPosition position = {rank / shards, replicas, rank % shards, shards};
            const auto turns = turns_of(count, position, accumulation);
            const auto round = ranks * members;
            EXPECT_EQ(std::ssize(turns), (count + round - 1) / round * members);
            for (const auto& turn : turns) {
              EXPECT_EQ(turn.number, &turn - turns.data());
              EXPECT_EQ(turn.last, &turn == &turns.back());
              EXPECT_TRUE(!turn.idle || turn.index == 0);
            }
            const auto own = indices(count, position, accumulation);
            all.insert(all.end(), own.begin(), own.end());
            if (own.empty()) ++idle_ones;
          }
          EXPECT_EQ(idle_ranks(count, {.replicas = replicas, .shards = shards}, accumulation),
                    idle_ones);
          std::ranges::sort(all);
          Indices expected(static_cast<std::size_t>(count));
          std::iota(expected.begin(), expected.end(), 0);
          EXPECT_EQ(all, expected);
        }
      }
    }
  }
}

/// A sum over 8 micro-batches of values whose order of addition shows in the result.
double sum_on(int world_size, Accumulation accumulation) {
  double sum = 0;
  launch(world_size, [&](RankContext& context) {
    models::CausalLM model(test::sharded_toy_config(), 1);
    auto& state = training::shard_model(model, DeviceMesh::flat(context.group()), {});
    const StepPlan plan(state, 8, accumulation);
    std::vector<double> own;
    std::vector<std::int64_t> ones, indices;
    for (const auto& turn : plan.turns()) {
      own.push_back(turn.idle ? 1e30 : 1.0 / static_cast<double>(3 + turn.index * turn.index));
      ones.push_back(1);
      indices.push_back(turn.index);
    }
    EXPECT_EQ(plan.indices(), indices);
    EXPECT_EQ(plan.sum(ones), 8);
    const double all = plan.sum(own);
    own.pop_back();
    EXPECT_EQ(message_of<ValueError>([&] { plan.sum(own); }),
              "step plan: a sum must have a value for each of " + std::to_string(ones.size()) +
                  " turns, got " + std::to_string(own.size()));
    if (context.rank() == 0) sum = all;
  });
  return sum;
}

TEST(StepPlan, SumsInTheOrderOfTheMicroBatchesWhateverTheRanks) {
  double expected = 0;
  for (int i = 0; i < 8; ++i) expected += 1.0 / (3 + i * i);
  for (const int world_size : {1, 2, 3, 4, 8, 11}) {
    for (const auto accumulation : {Accumulation::kKeepUntilLast, Accumulation::kReduceEach}) {
      EXPECT_EQ(sum_on(world_size, accumulation), expected) << world_size;
    }
  }
}

TEST(StepPlan, RefusesStepsWithoutMicroBatchesAndOtherNumbersOfThem) {
  launch(1, [](RankContext& context) {
    models::CausalLM model(test::sharded_toy_config(), 1);
    auto& state = training::shard_model(model, DeviceMesh::flat(context.group()), {});
    EXPECT_EQ(message_of<ValueError>([&] { StepPlan(state, 0); }),
              "step plan: micro_batches must be at least 1, got 0");
    EXPECT_EQ(message_of<ValueError>([&] { StepPlan(state, 2).own(std::vector<int>(1)); }),
              "step plan: a step must have 2 micro-batches, got 1");
  });
}

TEST(StepPlan, RefusesTurnsOutOfOrder) {
  launch(1, [](RankContext& context) {
    models::CausalLM model(test::sharded_toy_config(), 1);
    auto& state = training::shard_model(model, DeviceMesh::flat(context.group()), {});
    const auto tokens = Tensor::from(std::vector<std::int64_t>{1, 2, 3}, {3});
    StepPlan plan(state, 4);
    const auto run = [&](std::size_t i) {
      plan.backward(plan.turns()[i], ops::sum(model(tokens).logits));
    };
    const auto message = [](int index, int done) {
      return "step plan: backward must be called for the turns in order, got the turn of "
             "micro-batch " +
             std::to_string(index) + " after " + std::to_string(done) + " of 4 turns";
    };
    EXPECT_EQ(message_of<Error>([&] { run(1); }), message(1, 0));
    for (std::size_t i = 0; i < 4; ++i) run(i);
    EXPECT_EQ(message_of<Error>([&] { run(3); }), message(3, 4));
    run(0);
    EXPECT_EQ(message_of<Error>([&] { run(2); }), message(2, 1));
    run(1);
    // A step that was given up begins anew.
    for (std::size_t i = 0; i < 4; ++i) run(i);
    // An objective of another micro-batch than the first would be summed as the second.
    const MicroBatchGuard second(1);
    EXPECT_EQ(message_of<ValueError>([&] { run(0); }),
              "step plan: objective 0 must be computed under MicroBatchGuard(0), got one of "
              "MicroBatchGuard(1)");
  });
}

// The last rank has nothing but idle turns, which all run the same micro-batch.
TEST(StepPlan, BeginsAStepAnewWhereAllTurnsAreIdle) {
  launch(4, [](RankContext& context) {
    models::CausalLM model(test::sharded_toy_config(), 1);
    auto& state = training::shard_model(model, DeviceMesh::flat(context.group()), {});
    const auto tokens = Tensor::from(std::vector<std::int64_t>{1, 2, 3}, {3});
    StepPlan plan(state, 9);
    EXPECT_EQ(plan.turns()[0].idle, context.rank() == 3);
    const auto run = [&](std::size_t i) {
      plan.backward(plan.turns()[i], ops::sum(model(tokens).logits));
    };
    run(0);
    for (std::size_t i = 0; i < 3; ++i) run(i);
    EXPECT_EQ(message_of<Error>([&] { run(1); }),
              "step plan: backward must be called for the turns in order, got the turn of "
              "micro-batch " +
                  std::to_string(plan.turns()[1].index) + " after 3 of 3 turns");
  });
}

TEST(StepPlan, IdleTurnsAddNothingToTheGradients) {
  const auto norm_on = [](int world_size) {
    double norm = 0;
    launch(world_size, [&](RankContext& context) {
      models::CausalLM model(test::sharded_toy_config(), 1);
      auto& state = training::shard_model(model, DeviceMesh::flat(context.group()), {});
      const auto tokens = Tensor::from(std::vector<std::int64_t>{1, 2, 3}, {3});
      StepPlan plan(state, 9);
      for (const auto& turn : plan.turns()) plan.backward(turn, ops::sum(model(tokens).logits));
      const double own = optim::clip_grad_norm(model.named_parameters(), HUGE_VAL);
      if (context.rank() == 0) norm = own;
    });
    return norm;
  };
  const double expected = norm_on(1);
  EXPECT_GT(expected, 0);
  EXPECT_NEAR(norm_on(4), expected, 1e-5 * expected);
}

TEST(StepPlan, RefusesTheStateOfALayer) {
  launch(2, [](RankContext& context) {
    models::CausalLM model(test::sharded_toy_config(), 1);
    training::shard_model(model, DeviceMesh::flat(context.group()), {});
    StepPlan plan(*model.layers()[0].extension<State>(), 2);
    const auto batch = test::toy_batches(0, 1, model.config().vocab_size)[0];
    const auto loss = ops::sum(model(batch.tokens, batch.documents).logits);
    EXPECT_EQ(message_of<Error>([&] { plan.backward(plan.turns()[0], loss); }),
              "step plan: must have the state of the root, got that of 'model.layers.0'");
  });
}

TEST(StepPlan, TakesATurnAgainThatHasFailed) {
  launch(1, [](RankContext& context) {
    models::CausalLM model(test::sharded_toy_config(), 1);
    auto& state = training::shard_model(model, DeviceMesh::flat(context.group()), {});
    StepPlan plan(state, 2);
    const auto batch = test::toy_batches(0, 1, model.config().vocab_size)[0];
    for (const auto& turn : plan.turns()) {
      for (const bool fails : {true, false}) {
        const Tensor logits = model(batch.tokens, batch.documents).logits;
        const auto hook = logits.register_hook([fails](const Tensor&) {
          if (fails) throw Error("no more");
          return Tensor();
        });
        const auto step = [&] { plan.backward(turn, ops::sum(logits)); };
        if (!fails) {
          step();
        } else {
          EXPECT_EQ(message_of<Error>(step).substr(0, 7), "no more");
          state.reset_iter_state();
        }
      }
    }
  });
}

}  // namespace
}  // namespace moegrad::fsdp::step_plan_test
