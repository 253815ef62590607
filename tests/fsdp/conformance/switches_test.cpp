// SPDX-License-Identifier: Apache-2.0

// The lesser cases about what a user sets or calls by hand.

#include <gmock/gmock.h>

#include <algorithm>

#include "fsdp/gradient_reducer.h"
#include "optim/adamw.h"
#include "tests/fsdp/conformance/event_log.h"
#include "tests/fsdp/conformance/parity.h"

namespace moegrad::fsdp::conformance::switches_test {
namespace {

using namespace test;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

State& state_of(nn::Module& module) { return *module.extension<State>(); }

Training<MlpStack> four_layers() {
  return {.make =
              [] {
                return std::make_unique<MlpStack>(std::vector<std::int64_t>{5, 7, 6, 4, 3});
              },
          .loss =
              [](MlpStack& model, int iteration, int leaf) {
                return test::square_loss(model(test::leaf_input({3, 5}, iteration, leaf)));
              }};
}

/// A group for each layer but the first, which is the root's.
State& shard(MlpStack& model, RankContext& rank) {
  const auto mesh = DeviceMesh::flat(rank.group());
  for (std::size_t i = 1; i < model.layers.size(); ++i) fully_shard(model[i], mesh);
  return fully_shard(model, mesh);
}

// The backward of an embedding does not read its weight.
TEST(ConformanceSwitches, UnshardInBackwardOffSparesTheGatherOfAnEmbedding) {
  const Training<Transformer> training = {
      .make = [] { return std::make_unique<Transformer>(Transformer::Config{.blocks = 2}); },
      .loss =
          [](Transformer& model, int iteration, int leaf) {
            return test::square_loss(model(test::leaf_tokens(7, 11, iteration, leaf)));
          }};
  const auto reference = test::train_reference(training, 2);
  launch(2, [&](RankContext& rank) {
    const auto model = training.make();
    const auto mesh = DeviceMesh::flat(rank.group());
    auto& embedding = fully_shard(model->tok_embeddings, mesh);
    for (auto& block : model->blocks) fully_shard(*block, mesh);
    auto& root = fully_shard(*model, mesh);
    embedding.set_unshard_in_backward(false);
    const auto log = test::log_events(root, {Event::kGather});
    test::compare_training(*model, training, reference, rank.rank());
    EXPECT_EQ(std::ranges::count(log->take(), "gather tok_embeddings"), 10);
    embedding.set_unshard_in_backward(true);
    training.loss(*model, 0, rank.rank()).backward();
    EXPECT_EQ(std::ranges::count(log->take(), "gather tok_embeddings"), 2);
  });
}

/// Each rank may take another one of its branches, which are alike; even, so that no padding needs
/// zeros.
class Branches final : public nn::Callable<Branches> {
 public:
  Branches() : left(4, 6, 4), right(4, 6, 4) {
    register_module("left", left);
    register_module("right", right);
  }
  Tensor forward(const Tensor& x, bool go_left) { return go_left ? left(x) : right(x); }
  test::Mlp left, right;
};

class Branching final : public nn::Callable<Branching> {
 public:
  Branching() : first(5, 6, 4), last(4, 6, 3) {
    register_module("first", first);
    register_module("branches", branches);
    register_module("last", last);
    test::init_random(*this);
  }
  Tensor forward(const Tensor& x, bool go_left) { return last(branches(first(x), go_left)); }
  test::Mlp first;
  Branches branches;
  test::Mlp last;
};

Training<Branching> branching() {
  return {.make = [] { return std::make_unique<Branching>(); },
          .loss =
              [](Branching& model, int iteration, int leaf) {
                return test::square_loss(
                    model(test::leaf_input({3, 5}, iteration, leaf), leaf == iteration % 2));
              }};
}

// Ranks that use different parameters: zeros stand for the gradients that a rank does not have.
TEST(ConformanceSwitches, ReduceScatterUnusedParamsParityWhenRanksUseDifferentOnes) {
  test::expect_parity(2, branching(), [](Branching& model, RankContext& rank) {
    const auto mesh = DeviceMesh::flat(rank.group());
    fully_shard(model.branches, mesh);
    fully_shard(model, mesh).set_reduce_scatter_unused_params(true);
  });
}

// Frozen ones are no unused ones.
TEST(ConformanceSwitches, ReduceScatterUnusedParamsLeavesFrozenOnesAlone) {
  launch(2, [](RankContext& rank) {
    Branching model;
    model.branches.right.in_proj.weight.set_requires_grad(false);
    fully_shard(model, DeviceMesh::flat(rank.group())).set_reduce_scatter_unused_params(true);
    test::square_loss(model(test::leaf_input({3, 5}, 0, 0), true)).backward();
    EXPECT_FALSE(model.branches.right.in_proj.weight.grad().defined());
    EXPECT_TRUE(model.branches.right.in_proj.bias.grad().defined());
  });
}

// Without it, an error on all ranks, where PyTorch hangs or reduces what does not belong together:
// here sizes agree, but not the parameters.
TEST(ConformanceSwitches, RanksThatUseDifferentParametersFailTogetherNamingTheGroup) {
  std::vector<std::string> messages(3);
  EXPECT_THROW(launch(3,
                      [&](RankContext& rank) {
                        Branching model;
                        const auto mesh = DeviceMesh::flat(rank.group());
                        fully_shard(model.branches, mesh);
                        fully_shard(model, mesh);
                        try {
                          const Tensor x = test::leaf_input({3, 5}, 0, rank.rank());
                          test::square_loss(model(x, rank.rank() != 1)).backward();
                        } catch (const CollectiveError& error) {
                          messages[static_cast<std::size_t>(rank.rank())] = error.what();
                          throw;
                        }
                      },
                      {.on_failure = [](const std::string&) {}}),
               CollectiveError);
  EXPECT_THAT(messages, Each(HasSubstr("reduce_scatter")));
  EXPECT_THAT(messages, Each(HasSubstr("branches")));
}

// --- unshard by hand

TEST(ConformanceSwitches, UnshardWithoutParametersAndBeforeTheFirstForward) {
  const auto training = four_layers();
  const auto reference = test::train_reference(training, 2);
  launch(2, [&](RankContext& rank) {
    const auto model = training.make();
    const auto mesh = DeviceMesh::flat(rank.group());
    for (auto& layer : model->layers) fully_shard(*layer, mesh);
    auto& root = fully_shard(*model, mesh);
    root.unshard();  // nothing of its own
    root.unshard_async().wait();
    root.reshard();
    auto& layer = state_of((*model)[1]);
    auto handle = layer.unshard_async();
    EXPECT_TRUE(layer.group()->is_gathering());
    EXPECT_TRUE((*model)[1].in_proj.weight.shard_spec());
    handle.wait();
    EXPECT_FALSE((*model)[1].in_proj.weight.shard_spec());
    EXPECT_EQ((*model)[1].in_proj.weight.shape(), (Shape{14, 7}));
    state_of((*model)[2]).unshard_async();  // forward waits for it
    // The optimizer wants shards; values are in place all the same.
    layer.reshard();
    test::compare_training(*model, training, reference, rank.rank());
  });
}

// --- reductions in flight

std::ptrdiff_t reductions_in_flight(MlpStack& model) {
  const auto scattering = [](const std::unique_ptr<test::Mlp>& layer) {
    auto* state = layer->extension<State>();
    return state != nullptr && state->group()->reducer().scattering();
  };
  const auto& root = state_of(model);
  return std::ranges::count_if(model.layers, scattering) +
         (root.group()->reducer().scattering() ? 1 : 0);
}

TEST(ConformanceSwitches, MaxInputBuffersBoundsWhatIsInFlightAndChangesNoBit) {
  const auto training = four_layers();
  const auto reference = test::train_reference(training, 2);
  for (const int buffers : {1, 2, 3, 100}) {
    launch(2, [&](RankContext& rank) {
      const auto model = training.make();
      auto& root = shard(*model, rank);
      root.set_reduce_scatter_max_input_buffers(buffers);
      test::compare_training(*model, training, reference, rank.rank());
      root.set_is_last_backward(false);
      training.loss(*model, 0, rank.rank()).backward();
      EXPECT_EQ(reductions_in_flight(*model), std::min(buffers, 4));
      root.set_is_last_backward(true);
      training.loss(*model, 0, rank.rank()).backward();
      EXPECT_EQ(reductions_in_flight(*model), 0);
    });
  }
}

TEST(ConformanceSwitches, MaxInputBuffersMustBePositive) {
  launch(1, [](RankContext& rank) {
    const auto model = four_layers().make();
    auto& root = shard(*model, rank);
    for (const int buffers : {0, -1}) {
      EXPECT_EQ(message_of<ValueError>([&] { root.set_reduce_scatter_max_input_buffers(buffers); }),
                "set_reduce_scatter_max_input_buffers: at least 1, got " + std::to_string(buffers));
    }
  });
}

// Two stages of a pipeline under one cap: the second stage's first reduction waits for the first
// stage's last one.
TEST(ConformanceSwitches, ShareCommCtxSharesTheCapOfSeveralRoots) {
  const auto training = four_layers();
  const auto reference = test::train_reference(training, 2);
  launch(2, [&](RankContext& rank) {
    for (const bool shared : {false, true}) {
      const auto first = training.make(), second = training.make();
      auto& root = shard(*first, rank);
      auto& other = shard(*second, rank);
      if (shared) share_comm_ctx({&root, &other});
      root.set_is_last_backward(false);
      other.set_is_last_backward(false);
      training.loss(*first, 0, rank.rank()).backward();
      EXPECT_EQ(reductions_in_flight(*first), 1);
      training.loss(*second, 0, rank.rank()).backward();
      EXPECT_EQ(reductions_in_flight(*first), shared ? 0 : 1);
      EXPECT_EQ(reductions_in_flight(*second), 1);
      root.set_is_last_backward(true);
      other.set_is_last_backward(true);
      training.loss(*second, 0, rank.rank()).backward();
      first->zero_grad();
      second->zero_grad();
      training.loss(*first, 0, rank.rank()).backward();
      first->zero_grad();
      test::compare_training(*first, training, reference, rank.rank());
      test::compare_training(*second, training, reference, rank.rank());
    }
    EXPECT_EQ(message_of<ValueError>([] { share_comm_ctx({}); }),
              "share_comm_ctx: at least one state");
  });
}

// --- gradients that wait

TEST(ConformanceSwitches, PendingGradientsAreSeenAndSynchronizedByHand) {
  const auto training = four_layers();
  auto whole = training.make();
  // Kept on the rank first, then over ranks: leaves (rank, micro-batch).
  Training<MlpStack> leaves = training;
  leaves.iterations = 1;
  leaves.loss = [&](MlpStack& model, int, int leaf) {
    return training.loss(model, leaf % 2, leaf / 2);
  };
  const auto reference = test::train_reference(leaves, 4);
  launch(2, [&](RankContext& rank) {
    const auto model = training.make();
    auto& root = shard(*model, rank);
    root.set_requires_gradient_sync(false);
    EXPECT_THAT(root.get_pending_gradients(), IsEmpty());
    const auto own = training.make();  // what the rank keeps: the sum of its two
    GradientSum tree([&] {
      TensorList tensors;
      for (const auto& [name, tensor] : own->named_parameters()) tensors.push_back(tensor);
      return tensors;
    }());
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
      training.loss(*model, micro_batch, rank.rank()).backward();
      training.loss(*own, micro_batch, rank.rank()).backward();
      tree.push();
    }
    tree.finish();
    const auto pending = root.get_pending_gradients();
    EXPECT_EQ(pending.size(), 16U);
    for (const auto& [name, tensor] : own->named_parameters()) {
      const auto found = std::ranges::find(pending, name, &NamedTensor::name);
      ASSERT_NE(found, pending.end()) << name;
      EXPECT_TRUE(test::bitwise_equal(found->tensor, tensor.grad())) << name;
    }
    for (const auto& [name, tensor] : model->named_parameters()) {
      EXPECT_FALSE(tensor.grad().defined()) << name;
    }
    root.synchronize_gradients();
    EXPECT_THAT(root.get_pending_gradients(), IsEmpty());
    optim::AdamW optimizer(model->named_parameters(), {.lr = 1e-2});
    optimizer.step();
    test::check_sharded_parity(reference.after[0], *model);
  });
}

// model.zero_grad() must reach the shards' gradients when the shards do not stand in the modules:
// after forward the root's parameters are whole, and so are all with reshard_after_forward off.
TEST(ConformanceSwitches, ZeroGradBetweenForwardAndBackwardClearsTheShardsGradients) {
  const auto training = four_layers();
  auto once = training;
  once.iterations = 1;
  const auto reference = test::train_reference(once, 2);
  for (const bool reshard : {true, false}) {
    launch(2, [&](RankContext& rank) {
      const auto model = training.make();
      auto& root = shard(*model, rank);
      root.set_reshard_after_forward(reshard);
      training.loss(*model, 5, rank.rank()).backward();
      const Tensor loss = training.loss(*model, 0, rank.rank());
      model->zero_grad();
      EXPECT_FALSE(root.group()->params()[0].sharded.grad().defined());
      loss.backward();
      optim::AdamW optimizer(model->named_parameters(), {.lr = 1e-2});
      optimizer.step();
      test::check_sharded_parity(reference.after[0], *model);
    });
  }
}

}  // namespace
}  // namespace moegrad::fsdp::conformance::switches_test
