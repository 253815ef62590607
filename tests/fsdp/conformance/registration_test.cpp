// SPDX-License-Identifier: Apache-2.0

// Rows 1 and 2: which form of a parameter stands in the module, and when.

#include <optional>

#include "framework/runtime/grad_mode.h"
#include "tests/fsdp/conformance/parity.h"
#include "tests/fsdp/conformance/slots.h"

namespace moegrad::fsdp::conformance::registration_test {
namespace {

using test::Transformer;

State& state_of(nn::Module& module) { return *module.extension<State>(); }

Tensor run(Transformer& model, int leaf) { return model(test::leaf_tokens(7, 11, 0, leaf)); }

/// What this call's parameters are in the modules that hold them: the state's own shards, or whole.
void expect_registered(const State& state, bool whole) {
  for (const auto& group : state.groups()) {
    EXPECT_EQ(group->is_sharded(), !whole) << group->name();
    for (const auto& param : group->params()) {
      for (const auto* slot : param.slots) {
        EXPECT_TRUE(slot->is(whole ? param.unsharded : param.sharded)) << param.name;
      }
      // Allocated exactly while registered.
      EXPECT_EQ(param.unsharded.storage().released(), !whole) << param.name;
    }
  }
}

void expect_values(const nn::Module& whole, const nn::Module& model) {
  const auto expected = whole.named_parameters(), got = test::tensors_in_slots(model);
  EXPECT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(test::bitwise_equal(got[i].tensor.detach(), expected[i].tensor.detach()))
        << got[i].name;
  }
}

struct Sharded {
  Transformer model{{}};
  std::vector<State*> blocks;
  State* root = nullptr;

  Sharded(RankContext& rank, bool several_groups, std::optional<bool> reshard) {
    const auto mesh = DeviceMesh::flat(rank.group());
    const Policy policy = {.reshard_after_forward = reshard};
    for (auto& block : model.blocks) {
      if (several_groups) blocks.push_back(&fully_shard(*block, mesh, policy));
    }
    root = &fully_shard(model, mesh, policy);
  }
};

// Row 1: after forward the root's parameters are whole unless told to reshard, those of others are
// sharded unless told not to. By hand, everything can be gathered, with the values of before.
void check_registration_after_forward(RankContext& rank, bool several_groups,
                                      std::optional<bool> reshard) {
  const Transformer whole({});
  Sharded sharded(rank, several_groups, reshard);
  expect_registered(*sharded.root, false);
  {
    const NoGradGuard no_grad;  // no backward will come to free what may be freed
    run(sharded.model, rank.rank());
  }
  if (reshard == false) {
    expect_registered(*sharded.root, true);
    sharded.root->reshard();
    for (auto* block : sharded.blocks) block->reshard();
  }
  expect_registered(*sharded.root, false);
  for (auto* block : sharded.blocks) expect_registered(*block, false);
  run(sharded.model, rank.rank());
  expect_registered(*sharded.root, !reshard.value_or(false));
  for (auto* block : sharded.blocks) expect_registered(*block, !reshard.value_or(true));

  sharded.root->reshard();
  expect_registered(*sharded.root, false);
  for (auto* block : sharded.blocks) expect_registered(*block, !reshard.value_or(true));
  for (auto* block : sharded.blocks) block->reshard();
  for (auto* block : sharded.blocks) expect_registered(*block, false);

  sharded.root->unshard();
  for (auto* block : sharded.blocks) block->unshard();
  expect_registered(*sharded.root, true);
  expect_values(whole, sharded.model);
  for (const auto& [name, tensor] : test::tensors_in_slots(sharded.model)) {
    EXPECT_FALSE(tensor.shard_spec()) << name;
    EXPECT_TRUE(tensor.requires_grad()) << name;
  }
  for (const auto& [name, tensor] : sharded.model.named_parameters()) {
    EXPECT_TRUE(tensor.shard_spec()) << name;
  }
}

TEST(Conformance, Row01_RegistrationAfterForward) {
  for (const bool several_groups : {false, true}) {
    for (const auto reshard : {std::optional(true), std::optional(false), std::optional<bool>()}) {
      launch(2, [&](RankContext& rank) {
        check_registration_after_forward(rank, several_groups, reshard);
      });
    }
  }
}

// Row 2: after backward everything is sharded, whatever the policy; but for those told to stay.
TEST(Conformance, Row02_RegistrationAfterBackwardIsSharded) {
  for (const bool several_groups : {false, true}) {
    for (const auto reshard : {std::optional(true), std::optional(false), std::optional<bool>()}) {
      launch(2, [&](RankContext& rank) {
        Sharded sharded(rank, several_groups, reshard);
        test::square_loss(run(sharded.model, rank.rank())).backward();
        expect_registered(*sharded.root, false);
        for (auto* block : sharded.blocks) expect_registered(*block, false);
        for (const auto& [name, tensor] : sharded.model.named_parameters()) {
          EXPECT_TRUE(tensor.shard_spec()) << name;
          EXPECT_EQ(tensor.grad().shape(), tensor.shape()) << name;
        }
        sharded.root->set_reshard_after_backward(false, /*recurse=*/false);
        test::square_loss(run(sharded.model, rank.rank())).backward();
        expect_registered(*sharded.root, true);
        for (auto* block : sharded.blocks) expect_registered(*block, false);
      });
    }
  }
}

// Freed by hand between forward and backward, parameters are gathered again: parity.
TEST(Conformance, Row01_ManualReshardBeforeBackwardChangesNothing) {
  const test::Training<Transformer> training = {
      .make = [] { return std::make_unique<Transformer>(Transformer::Config{}); },
      .loss =
          [](Transformer& model, int, int leaf) {
            const Tensor out = run(model, leaf);
            model.restore_parameters();
            return test::square_loss(out);
          },
      .iterations = 2};
  test::expect_parity(2, training, [](Transformer& model, RankContext& rank) {
    const auto mesh = DeviceMesh::flat(rank.group());
    fully_shard(*model.blocks[1], mesh, {.reshard_after_forward = false});
    fully_shard(model, mesh);
    EXPECT_EQ(&state_of(*model.blocks[1]), model.blocks[1]->extension<State>());
  });
}

}  // namespace
}  // namespace moegrad::fsdp::conformance::registration_test
