// SPDX-License-Identifier: Apache-2.0

// Peak bytes to the byte. With S the shards of all groups, R the root group unsharded, B the
// largest other group unsharded and A the activations:
//
//     forward     S + R + 2B + A                 the group in use and the one prefetched
//     backward    2S + R + Rg + 4B + A at most   in addition sharded gradients, the root's
//                                                gradients Rg, and for one group gradients and
//                                                the input of a reduction in flight
//     optimizer   + 2S + 8 per parameter         Adam's two moments, and a count of steps
//
// Only the compute thread allocates, so these are no race.

#include <algorithm>

#include "framework/runtime/arena.h"
#include "models/causal_lm/loss.h"
#include "optim/adamw.h"
#include "tests/fsdp/models.h"

namespace moegrad::memory_test {
namespace {

/// Four equal layers; sizes divide by every world size used, so shards have no padding.
models::CausalLMConfig config() {
  auto config = test::sharded_toy_config();
  config.vocab_size = 64;
  config.hidden_size = 32;
  config.head_dim = 8;
  config.moe_intermediate_size = 32;
  config.num_experts = 8;
  config.num_hidden_layers = 4;
  return config;
}

struct Bytes {
  std::int64_t shards = 0;         // S
  std::int64_t root = 0;           // R
  std::int64_t largest_group = 0;  // B
};

Bytes bytes_of(models::CausalLM& model, const fsdp::State& root) {
  Bytes bytes{.shards = root.group()->sharded_bytes(), .root = root.group()->unsharded_bytes()};
  for (auto& layer : model.layers()) {
    const auto& group = *layer.extension<fsdp::State>()->group();
    bytes.shards += group.sharded_bytes();
    bytes.largest_group = std::max(bytes.largest_group, group.unsharded_bytes());
  }
  return bytes;
}

models::CausalLMLoss loss_of(models::CausalLM& model) {
  const auto batch = test::toy_batches(0, 1, 64)[0];
  return models::causal_lm_loss(model(batch.tokens, batch.documents), batch.targets, 16, 0.001);
}

/// Highest activation bytes of a forward without any sharding.
std::int64_t plain_forward_activations() {
  RankContext context;
  const RankContextGuard guard(context);
  models::CausalLM model(config(), 1);
  context.arena()->reset_peak();
  const auto loss = loss_of(model);
  return context.arena()->peak(MemoryTag::kActivations);
}

TEST(Memory, ForwardPeakIsShardsRootTwoGroupsAndActivations) {
  const auto activations = plain_forward_activations();
  for (const int world_size : {1, 2, 4}) {
    launch(world_size, [&](RankContext& context) {
      models::CausalLM model(config(), 1);
      auto& root = training::shard_model(model, DeviceMesh::flat(context.group()), {});
      const auto bytes = bytes_of(model, root);
      auto& arena = *context.arena();
      EXPECT_EQ(arena.live().total(), bytes.shards);
      loss_of(model).objective.backward();  // records the order to prefetch by
      model.zero_grad();
      EXPECT_EQ(arena.live().total(), bytes.shards);
      arena.reset_peak();
      const auto loss = loss_of(model);
      const auto peak = arena.peak();
      EXPECT_EQ(arena.peak(MemoryTag::kParameters),
                bytes.shards + bytes.root + 2 * bytes.largest_group);
      EXPECT_EQ(arena.peak(MemoryTag::kActivations), activations);
      EXPECT_EQ(peak.total(), bytes.shards + bytes.root + 2 * bytes.largest_group +
                                  peak[MemoryTag::kActivations]);
    });
  }
}

TEST(Memory, BackwardStaysWithinFourGroupsAndEndsWithShardedGradientsAlone) {
  for (const int world_size : {1, 2, 4}) {
    launch(world_size, [&](RankContext& context) {
      models::CausalLM model(config(), 1);
      auto& root = training::shard_model(model, DeviceMesh::flat(context.group()), {});
      const auto bytes = bytes_of(model, root);
      auto& arena = *context.arena();
      loss_of(model).objective.backward();
      model.zero_grad();
      arena.reset_peak();
      { loss_of(model).objective.backward(); }
      const auto peak = arena.peak();
      EXPECT_EQ(arena.peak(MemoryTag::kParameters),
                bytes.shards + bytes.root + 2 * bytes.largest_group);
      EXPECT_LE(peak.total() - peak[MemoryTag::kActivations],
                2 * bytes.shards + 2 * bytes.root + 4 * bytes.largest_group);
      EXPECT_EQ(arena.live().total(), 2 * bytes.shards);
      EXPECT_EQ(arena.live()[MemoryTag::kGradients], bytes.shards);

      optim::AdamW optimizer(model.named_parameters(), {});
      const auto counts = 8 * std::ssize(model.named_parameters());
      EXPECT_EQ(arena.live()[MemoryTag::kOptimizer], 2 * bytes.shards + counts);
      arena.reset_peak();
      optimizer.step();
      optimizer.zero_grad();
      EXPECT_EQ(arena.peak().total(), 4 * bytes.shards + counts);
      EXPECT_EQ(arena.live().total(), 3 * bytes.shards + counts);
    });
  }
}

TEST(Memory, KeptGradientsCostOnePartialPerTreeLevel) {
  launch(2, [](RankContext& context) {
    models::CausalLM model(config(), 1);
    auto& root = training::shard_model(model, DeviceMesh::flat(context.group()), {});
    const auto bytes = bytes_of(model, root);
    const auto whole = bytes.shards * context.world_size();
    auto& arena = *context.arena();
    root.set_requires_gradient_sync(false);
    const auto kept = [&](int backwards) {
      for (int i = 0; i < backwards; ++i) loss_of(model).objective.backward();
      return arena.live()[MemoryTag::kGradients];
    };
    EXPECT_EQ(kept(1), whole);      // 1
    EXPECT_EQ(kept(1), whole);      // 1 + 2
    EXPECT_EQ(kept(1), 2 * whole);  // (1 + 2), 3
    EXPECT_EQ(kept(1), whole);      // (1 + 2) + (3 + 4)
  });
}

TEST(Memory, SteadyStateAsksTheSystemForNothing) {
  launch(2, [](RankContext& context) {
    models::CausalLM model(config(), 1);
    auto& root = training::shard_model(model, DeviceMesh::flat(context.group()), {});
    optim::AdamW optimizer(model.named_parameters(), {});
    fsdp::StepPlan plan(root, 4);
    const auto step = [&] {
      training::train_step(model, plan, plan.own(test::toy_batches(0, 4, 64)), {}, optimizer);
    };
    for (int i = 0; i < 3; ++i) step();
    const auto before = context.arena()->system_allocations();
    for (int i = 0; i < 5; ++i) step();
    EXPECT_EQ(context.arena()->system_allocations(), before);
  });
}

}  // namespace
}  // namespace moegrad::memory_test
