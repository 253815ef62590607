// SPDX-License-Identifier: Apache-2.0

// Note [Shards are the truth]: who sees which values when the shards change.

#include <gmock/gmock.h>

#include "framework/distributed/to_local.h"
#include "fsdp/state_dict.h"
#include "nn/init.h"
#include "tests/fsdp/two_blocks.h"
#include "tests/testing.h"

namespace moegrad::fsdp::stale_values_test {
namespace {

using namespace two_block_net;
using namespace test;
using ::testing::HasSubstr;

constexpr double kHuge = 1e9;

State& state_of(nn::Module& module) { return *module.extension<State>(); }

optim::SGD sgd(const nn::Module& module) { return {module.named_parameters(), {.lr = 0.05}}; }

const char* const kModified =
    "linear: a tensor of shape [4, 4] 'block1.linear.weight' saved for backward has been modified "
    "in place since; in module block1.linear";

// Same inputs on all ranks: the gradient is the unsharded one times a power of two.
struct Numbers {
  double norm = 0, before = 0, after = 0;
  friend bool operator==(const Numbers&, const Numbers&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Numbers& numbers) {
    return out << numbers.norm << ' ' << numbers.before << ' ' << numbers.after;
  }
};

Numbers train_with_evaluations(RealNet& net, double lr) {
  optim::SGD optimizer(net.named_parameters(), {.lr = lr});
  loss_of(net).backward();
  loss_of(net, 6);
  Numbers numbers;
  numbers.norm = optim::clip_grad_norm(net.named_parameters(), kHuge);
  numbers.before = loss_of(net, 7).item();
  optimizer.step();
  numbers.after = loss_of(net, 7).item();
  return numbers;
}

TEST(StaleValues, EvaluationsWithTheTapeOnChangeNothing) {
  RealNet whole(two_blocks());
  const auto reference = train_with_evaluations(whole, 0.5);
  for (const int world : {1, 2, 4}) {
    launch(world, [&](RankContext& rank) {
      RealNet net(two_blocks());
      shard(net, rank);
      auto numbers = train_with_evaluations(net, 0.5 / world);
      numbers.norm /= world;
      EXPECT_EQ(numbers, reference);
    });
  }
}

/// What may come between a forward and its backward, on a whole or a sharded module.
struct Change {
  const char* name;
  std::function<void(RealNet&)> make;
};

std::vector<Change> changes() {
  return {
      {"step",
       [](RealNet& net) {
         auto optimizer = sgd(net);
         optimizer.step();
       }},
      {"load",
       [](RealNet& net) {
         NamedTensors state = net.state_dict();
         for (auto& [name, value] : state) {
           const auto spec = value.shard_spec();
           value = ops::mul(to_local(value), 2.0);
           value.set_shard_spec(spec);
         }
         net.load_state_dict(state);
       }},
      {"copy_", [](RealNet& net) { halve(net); }},
      {"init_weights", [](RealNet& net) { nn::init_weights(net, 3, 0.1); }},
      {"other weights for an evaluation",
       [](RealNet& net) {
         const NamedTensors live = net.named_parameters();
         NamedTensors own;
         for (const auto& [name, tensor] : live) own.push_back({name, clone(tensor.detach())});
         halve(net);
         {
           const NoGradGuard no_grad;
           loss_of(net);
         }
         for (std::size_t i = 0; i < own.size(); ++i) {
           Tensor back = live[i].tensor.detach();
           copy_(back, own[i].tensor);
         }
       }},
  };
}

TEST(StaleValues, BackwardOfOlderWeightsIsTheErrorOfTheUnshardedProgram) {
  for (const auto& change : changes()) {
    RealNet whole(two_blocks());
    loss_of(whole).backward();
    const Tensor loss = loss_of(whole);
    change.make(whole);
    EXPECT_EQ(message_of<Error>([&] { loss.backward(); }), kModified) << change.name;
  }
  for (const int world : {1, 2, 3}) {
    for (const bool reshard : {true, false}) {
      for (const int prefetch : {0, 2}) {
        for (const auto& change : changes()) {
          SCOPED_TRACE(::testing::Message() << change.name << " on " << world << " ranks, reshard "
                                            << reshard << ", prefetch " << prefetch);
          launch(world, [&](RankContext& rank) {
            RealNet net(two_blocks());
            auto& root =
                shard(net, rank, {.reshard_after_forward = reshard, .forward_prefetch = prefetch});
            loss_of(net).backward();
            const Tensor loss = loss_of(net);
            change.make(net);
            EXPECT_EQ(message_of<Error>([&] { loss.backward(); }), kModified);
            root.reset_iter_state();
            net.zero_grad();
            loss_of(net).backward();  // goes on
            EXPECT_TRUE(net.named_parameters()[0].tensor.grad().defined());
          });
        }
      }
    }
  }
}

// A recomputed block saves the weights anew, so it takes the new ones, as without sharding; the
// block below saved them in forward.
TEST(StaleValues, RecomputationTakesTheWeightsOfItsTime) {
  const auto message = [](RealNet& net) {
    loss_of(net).backward();
    const Tensor loss = loss_of(net);
    halve(net);
    return message_of<Error>([&] { loss.backward(); });
  };
  const auto gradient = [](RealNet& net) {
    const Tensor loss = loss_of(net);
    halve(net);
    loss.backward();
    return net.blocks[0]->named_parameters()[0].tensor;
  };
  RealNet whole(two_blocks({false, true})), recomputed(two_blocks({true, true}));
  const auto expected = message(whole);
  EXPECT_EQ(expected,
            "linear: a tensor of shape [4, 4] 'block0.linear.weight' saved for backward has been "
            "modified in place since; in module block0.linear");
  const Tensor sum = ops::mul(gradient(recomputed).grad(), 2.0);
  for (const bool reshard : {true, false}) {
    launch(2, [&](RankContext& rank) {
      RealNet net(two_blocks({false, true})), other(two_blocks({true, true}));
      shard(net, rank, {.reshard_after_forward = reshard});
      shard(other, rank, {.reshard_after_forward = reshard});
      EXPECT_EQ(message(net), expected);
      const Tensor parameter = gradient(other);
      EXPECT_TRUE(
          test::bitwise_equal(parameter.grad(), clone(shard_view(sum, *parameter.shard_spec()))));
    });
  }
}

TEST(StaleValues, GathersOfOneVersionAreNoModification) {
  launch(2, [](RankContext& rank) {
    RealNet net(two_blocks());
    auto& root = shard(net, rank);
    const auto versions = [&] {
      std::vector<std::uint64_t> all;
      for (const auto* state : {&root, &state_of(*net.blocks[0]), &state_of(*net.blocks[1])}) {
        for (const auto& param : state->group()->params()) {
          all.push_back(param.unsharded.storage().version());
        }
      }
      return all;
    };
    loss_of(net).backward();
    const auto before = versions();
    const Tensor loss = loss_of(net);
    root.reshard();
    net.state_dict();
    loss.backward();
    EXPECT_EQ(versions(), before);
    auto optimizer = sgd(net);
    optimizer.step();
    loss_of(net);
    for (std::size_t i = 0; i < before.size(); ++i) EXPECT_EQ(versions()[i], before[i] + 1);
  });
}

TEST(StaleValues, NamedParametersAreShardsWhateverIsGathered) {
  launch(2, [](RankContext& rank) {
    RealNet net(two_blocks());
    auto& root = shard(net, rank, {.reshard_after_forward = false});
    const NamedTensors before = net.named_parameters();
    loss_of(net);
    for (const nn::Module* module : std::vector<const nn::Module*>{&net, net.blocks[0].get()}) {
      for (const auto& [name, parameter] : module->named_parameters()) {
        EXPECT_NE(parameter.shard_spec(), nullptr) << name;
      }
    }
    EXPECT_FALSE(root.group()->is_sharded());
    const NamedTensors after = net.named_parameters();
    for (std::size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(after[i].tensor.is(before[i].tensor)) << before[i].name;
    }
  });
}

// Also those of a child whose parameters belong to a group of a module above.
TEST(StaleValues, NamedParametersOfAChildOfTheGroupsModuleAreShards) {
  launch(2, [](RankContext& rank) {
    RealNet net(two_blocks());
    auto& root = fully_shard(net, DeviceMesh::flat(rank.group()));
    loss_of(net);
    EXPECT_FALSE(root.group()->is_sharded());
    const auto parameters = net.blocks[1]->named_parameters();
    EXPECT_NE(parameters[0].tensor.shard_spec(), nullptr);
    nn::init_weights(*net.blocks[1], 3, 0.1);  // writes to the shard, not to the copy
    root.reshard();
  });
}

TEST(StaleValues, APrefetchFromBeforeAStepIsGatheredAgain) {
  for (const int world : {1, 2}) {
    launch(world, [](RankContext& rank) {
      RealNet net(two_blocks());
      shard(net, rank);
      auto& block = state_of(*net.blocks[0]);
      loss_of(net).backward();
      auto optimizer = sgd(net);
      auto handle = block.unshard_async();
      block.group()->finish_gather();
      EXPECT_TRUE(block.group()->is_gathering());
      optimizer.step();
      handle.wait();
      const auto& param = block.group()->params()[0];
      EXPECT_TRUE(test::bitwise_equal(
          clone(shard_view(param.unsharded, *param.sharded.shard_spec())), param.sharded));
    });
  }
}

TEST(StaleValues, WeightsThatStayGatheredAfterBackwardFollowAStep) {
  RealNet whole(two_blocks());
  loss_of(whole).backward();
  halve(whole);
  const double expected = loss_of(whole).item();
  launch(2, [&](RankContext& rank) {
    RealNet net(two_blocks());
    shard(net, rank).set_reshard_after_backward(false);
    loss_of(net).backward();
    EXPECT_FALSE(state_of(*net.blocks[0]).group()->is_sharded());
    halve(net);
    EXPECT_EQ(loss_of(net).item(), expected);
  });
}

// Such a module promises not to read its weights in backward; if it does, it must not read old
// ones.
TEST(StaleValues, BackwardWithoutAGatherReadsNoOldValues) {
  launch(2, [](RankContext& rank) {
    RealNet net(two_blocks());
    auto& root = shard(net, rank, {.reshard_after_forward = false});
    root.set_unshard_in_backward(false);
    for (auto& block : net.blocks) state_of(*block).set_unshard_in_backward(false);
    const Tensor loss = loss_of(net);
    halve(net);
    EXPECT_EQ(message_of<Error>([&] { loss.backward(); }),
              "tensor: the bytes of 'block1.linear.weight' have been released; unshard its module "
              "before reading it; in module block1.linear");
  });
}

// --- writes to copies

const char* const kWritten =
    "fully_shard: the gathered values of 'block0.linear.weight' must not be written to, because "
    "they "
    "are a copy; write to the shard that named_parameters() gives";

TEST(StaleValues, AWriteToGatheredValuesIsAnErrorWhenTheyAreFreedOrUsedAgain) {
  launch(2, [](RankContext& rank) {
    RealNet net(two_blocks());
    shard(net, rank);
    loss_of(net);  // names
    auto& block = state_of(*net.blocks[0]);
    const std::vector<std::function<void()>> uses = {[&] { block.reshard(); },
                                                     [&] { block.unshard(); },
                                                     [&] { loss_of(net); },
                                                     [&] { net.state_dict(); },
                                                     [&] { full_state_dict(net); },
                                                     [&] { net.load_state_dict(net.state_dict()); },
                                                     [&] { nn::init_weights(net, 1, 1); }};
    for (const auto& use : uses) {
      block.unshard();
      Tensor copy = net.blocks[0]->parameter_slots()[0].tensor->detach();
      EXPECT_EQ(copy.shard_spec(), nullptr);
      fill_(copy, 3.0);
      EXPECT_EQ(message_of<Error>(use), kWritten);
      EXPECT_TRUE(block.group()->is_sharded());
      loss_of(net);  // goes on, with the shards' values
      EXPECT_NE(block.group()->params()[0].sharded.data<double>()[0], 3.0);
    }
  });
}

// --- frozen in either form, at any time

TEST(StaleValues, RequiresGradFollowsWhicheverFormWasSet) {
  launch(2, [](RankContext& rank) {
    RealNet net(two_blocks());
    auto& root = shard(net, rank, {.reshard_after_forward = false});
    const auto trains = [&](bool wanted) {
      net.zero_grad();
      loss_of(net).backward();
      EXPECT_EQ(net.named_parameters().back().tensor.grad().defined(), wanted);
    };
    loss_of(net);  // gathered from here on
    EXPECT_FALSE(root.group()->is_sharded());
    net.named_parameters().back().tensor.set_requires_grad(false);  // the shard
    trains(false);
    loss_of(net);
    net.parameter_slots().back().tensor->set_requires_grad(true);  // the copy
    trains(true);
    root.reshard();
    net.parameter_slots().back().tensor->set_requires_grad(false);  // the shard again
    trains(false);
    auto gather = state_of(*net.blocks.back()).unshard_async();
    net.named_parameters().back().tensor.set_requires_grad(true);  // while the gather is under way
    gather.wait();
    EXPECT_TRUE(net.parameter_slots().back().tensor->requires_grad());
  });
}

}  // namespace
}  // namespace moegrad::fsdp::stale_values_test
