// SPDX-License-Identifier: Apache-2.0

// Row 14: experts on a mesh of another shape than all else. PyTorch's test has expert and tensor
// parallel meshes and mixes SUM with AVG; here all sums are sums, and the experts' mesh has the
// axes {replicate 2, shard 2} where the dense one has {shard 4}.

#include <gmock/gmock.h>

#include "framework/runtime/arena.h"
#include "ops/nz.h"
#include "tests/fsdp/conformance/event_log.h"
#include "tests/fsdp/conformance/parity.h"
#include "tests/fsdp/conformance/slots.h"

namespace moegrad::fsdp::conformance::expert_mesh_test {
namespace {

using namespace test;
using ::testing::ElementsAre;

DeviceMesh two_by_two(RankContext& rank) {
  return DeviceMesh(rank.group(), {{"replicate", 2}, {"shard", 2}});
}

// Dense parameters over four shards, experts two by two, unless the policy says otherwise.
State& shard(MoeNet& model, RankContext& rank, Policy policy = {}) {
  if (!policy.expert_mesh) policy.expert_mesh = two_by_two(rank);
  const auto mesh = DeviceMesh::flat(rank.group());
  for (auto& block : model.blocks) fully_shard(*block, mesh, policy);
  return fully_shard(model, mesh, policy);
}

State& state_of(nn::Module& module) { return *module.extension<State>(); }

TEST(Conformance, Row14_ExpertsOnAMeshOfTheirOwnFormGroupsOfTheirOwn) {
  launch(4, [](RankContext& rank) {
    MoeNet model;
    const auto experts_on = two_by_two(rank);
    auto& root = shard(model, rank, {.expert_mesh = experts_on});
    EXPECT_EQ(root.groups().size(), 1U);
    const auto& groups = state_of(*model.blocks[0]).groups();
    ASSERT_EQ(groups.size(), 2U);
    const auto& dense = *groups[0];
    const auto& experts = *groups[1];
    EXPECT_EQ(dense.params().size(), 2U);  // norm, router
    EXPECT_EQ(dense.ranks().shard, rank.group());
    EXPECT_EQ(dense.ranks().replicas, nullptr);
    EXPECT_EQ(experts.params().size(), 2U);
    EXPECT_EQ(experts.ranks().shard, experts_on.group("shard"));
    EXPECT_EQ(experts.ranks().replicas, experts_on.group("replicate"));
    const auto& spec = *experts.params()[0].sharded.shard_spec();
    EXPECT_EQ(spec.box.shape[0], spec.global_shape[0] / 2);
    EXPECT_EQ(spec.box.begin[0], rank.rank() % 2 == 0 ? 0 : spec.box.shape[0]);
    EXPECT_EQ(spec.placements.back().group, experts_on.group("replicate"));
  });
}

TEST(Conformance, Row14_FullParametersAreEqualAtInit) {
  const MoeNet whole;
  launch(4, [&](RankContext& rank) {
    MoeNet model;
    auto& root = shard(model, rank);
    root.unshard();
    for (auto& block : model.blocks) state_of(*block).unshard();
    const auto expected = whole.named_parameters(), got = test::tensors_in_slots(model);
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      const Tensor tensor = got[i].tensor.detach();
      const Tensor values = tensor.layout() == Layout::kNZ ? ops::nz_to_nd(tensor) : tensor;
      EXPECT_TRUE(test::bitwise_equal(values, expected[i].tensor.detach())) << got[i].name;
    }
  });
}

Training<MoeNet> moe_net() {
  return {.make = [] { return std::make_unique<MoeNet>(); },
          .loss =
              [](MoeNet& model, int iteration, int leaf) {
                return test::square_loss(model(test::leaf_input({5, 6}, iteration, leaf)));
              }};
}

// (r0 + r1) + (r2 + r3) either way, so the one tree is the reference of both meshes: bitwise.
TEST(Conformance, Row14_ParityWithExpertsOnAMeshOfAnotherShape) {
  const Training<MoeNet> training = {
      .make = [] { return std::make_unique<MoeNet>(); },
      .loss =
          [](MoeNet& model, int iteration, int leaf) {
            return test::square_loss(model(test::leaf_input({5, 6}, iteration, leaf)));
          }};
  for (const bool reshard : {true, false}) {
    test::expect_parity(4, training, [&](MoeNet& model, RankContext& rank) {
      shard(model, rank, {.reshard_after_forward = reshard});
    });
  }
  // The other way round.
  test::expect_parity(4, training, [&](MoeNet& model, RankContext& rank) {
    const Policy policy = {.expert_mesh = DeviceMesh::flat(rank.group())};
    for (auto& block : model.blocks) fully_shard(*block, two_by_two(rank), policy);
    fully_shard(model, two_by_two(rank), policy);
  });
}

// Each parameter of one call on the mesh that shard_placement names: three groups, one of them
// replicated alone.
TEST(Conformance, Row14_ParityWithAMeshPerParameter) {
  const auto training = moe_net();
  const auto reference = test::train_reference(training, 4);
  launch(4, [&](RankContext& rank) {
    const auto four = DeviceMesh::flat(rank.group());
    const DeviceMesh pairs(rank.group(), {{"replicate", 2}, {"shard", 2}});
    const DeviceMesh copies(rank.group(), {{"replicate", 4}, {"shard", 1}});
    const auto model = training.make();
    auto& state = fully_shard(*model, four, {.shard_placement = [&](const nn::ParameterSlot& slot) {
      const auto& shape = slot.tensor->shape();
      if (shape.ndim() == 1) return ShardPlacement{.mesh = &copies};
      return ShardPlacement{.mesh = shape[0] % 2 == 0 ? &pairs : &four};
    }});
    EXPECT_EQ(state.groups().size(), 3U);
    test::compare_training(*model, training, reference, rank.rank());
  });
}

TEST(Conformance, Row14_EventsOfTheTwoGroupsOfABlock) {
  launch(4, [](RankContext& rank) {
    MoeNet model(1);
    auto& root = shard(model, rank, {.forward_prefetch = 0});
    const auto log =
        test::log_events(root, {Event::kUnshard, Event::kPrefetch, Event::kReshard, Event::kGather,
                                Event::kReduce, Event::kAllReduce, Event::kPostBackward});
    const Tensor loss = test::square_loss(model(test::leaf_input({5, 6}, 0, rank.rank())));
    EXPECT_THAT(log->take(),
                ElementsAre("unshard ", "gather ", "unshard blocks.0", "gather blocks.0",
                            "unshard blocks.0.moe.experts.gate_up_proj",
                            "gather blocks.0.moe.experts.gate_up_proj", "reshard blocks.0",
                            "reshard blocks.0.moe.experts.gate_up_proj"));
    loss.backward();
    // Backward gathers ahead what ran last. The experts' reduction does not wait for the dense one:
    // other ranks, another cap. Their all-reduce follows when backward ends, the root's own
    // reduction having been issued.
    EXPECT_THAT(log->take(),
                ElementsAre("prefetch blocks.0", "gather blocks.0",
                            "prefetch blocks.0.moe.experts.gate_up_proj",
                            "gather blocks.0.moe.experts.gate_up_proj", "reshard blocks.0",
                            "reshard blocks.0.moe.experts.gate_up_proj", "reduce blocks.0",
                            "reduce blocks.0.moe.experts.gate_up_proj", "post_backward blocks.0",
                            "reshard ", "reduce ", "post_backward ",
                            "all_reduce blocks.0.moe.experts.gate_up_proj"));
  });
}

}  // namespace
}  // namespace moegrad::fsdp::conformance::expert_mesh_test
