// SPDX-License-Identifier: Apache-2.0

// What is left behind by a call that throws, and by a state that ends before others.

#include <gmock/gmock.h>

#include <array>
#include <atomic>

#include "framework/distributed/launch.h"
#include "framework/runtime/grad_mode.h"
#include "framework/runtime/rank_context.h"
#include "fsdp/gradient_reducer.h"
#include "ops/reduce.h"
#include "tests/fsdp/conformance/event_log.h"
#include "tests/fsdp/conformance/parity.h"
#include "tests/testing.h"

namespace moegrad::fsdp::failure_test {
namespace {

using namespace test;

State& state_of(nn::Module& module) { return *module.extension<State>(); }

std::unique_ptr<MlpStack> make_stack() {
  return std::make_unique<MlpStack>(std::vector<std::int64_t>{5, 7, 6});
}

State& shard(MlpStack& model, const DeviceMesh& mesh, const Policy& policy = {}) {
  for (auto& layer : model.layers) fully_shard(*layer, mesh, policy);
  return fully_shard(model, mesh, policy);
}

Tensor run(MlpStack& model) { return model(test::leaf_input({3, 5}, 0, 0)); }

TEST(FsdpFailure, AGatherWithoutRoomLeavesTheGroupShardedAndKeepsNoBytes) {
  launch(2, [](RankContext& rank) {
    const auto model = make_stack();
    shard(*model, DeviceMesh::flat(rank.group()));
    auto& state = state_of((*model)[1]);
    auto& arena = *rank.arena();
    const auto before = arena.live().total();
    arena.set_budget(before + state.group()->unsharded_bytes() - 4);
    EXPECT_THROW(state.unshard(), Error);
    arena.set_budget(0);
    EXPECT_TRUE(state.group()->is_sharded());
    EXPECT_EQ(arena.live().total(), before);
    state.unshard();
    state.reshard();
  });
}

TEST(FsdpFailure, AGatherThatFailedLeavesTheGroupShardedAndReshardDoesNotThrowIt) {
  std::atomic<bool> posted = false;
  EXPECT_THROW(launch(2,
                      [&](RankContext& rank) {
                        const auto model = make_stack();
                        shard(*model, DeviceMesh::flat(rank.group()));
                        if (rank.rank() == 1) {
                          posted.wait(false);
                          throw Error("gone");
                        }
                        auto& first = state_of((*model)[0]);
                        auto handle = first.unshard_async();
                        state_of((*model)[1]).unshard_async();
                        posted = true;
                        posted.notify_all();
                        EXPECT_THROW(handle.wait(), CollectiveError);
                        EXPECT_TRUE(first.group()->is_sharded());
                        EXPECT_NO_THROW(model->state_dict());
                        EXPECT_TRUE(state_of((*model)[1]).group()->is_sharded());
                      }),
               Error);
}

TEST(FsdpFailure, ABackwardAfterOneThatFailedIsRefusedUntilTheStateIsReset) {
  launch(2, [](RankContext& rank) {
    const auto model = make_stack();
    auto& root = shard(*model, DeviceMesh::flat(rank.group()));
    const Tensor x = test::leaf_input({3, 5}, 0, 0).set_requires_grad(true);
    x.register_hook([](const Tensor&) -> Tensor { throw Error("a hook's"); });
    const Tensor first = ops::sum((*model)(x)), second = ops::sum(run(*model));
    EXPECT_THROW(first.backward(), Error);
    EXPECT_EQ(message_of<Error>([&] { second.backward(); }),
              "fully_shard: the last backward ended in an exception; call reset_iter_state(); in "
              "module 1.out_proj");
    // Nor does a forward that another backward runs, as one of recomputation, take its place.
    const Tensor other = test::leaf_input({2}, 1, 0).set_requires_grad(true);
    std::string forward;
    other.register_hook([&](const Tensor& grad) {
      forward = message_of<Error>([&] { run(*model); });
      return grad;
    });
    ops::sum(ops::mul(other, other)).backward();
    EXPECT_EQ(forward,
              "fully_shard: the last backward ended in an exception; call reset_iter_state()");
    root.reset_iter_state();
    ops::sum(run(*model)).backward();
    for (const auto& [name, parameter] : model->named_parameters()) {
      EXPECT_TRUE(parameter.grad().defined()) << name;
    }
  });
}

TEST(FsdpFailure, AReductionThatFailedGivesNoGradients) {
  std::atomic<bool> posted = false;
  EXPECT_THROW(
      launch(2,
             [&](RankContext& rank) {
               test::Affine model(5, 4);
               auto& state = fully_shard(model, DeviceMesh::flat(rank.group()));
               state.set_is_last_backward(false);
               const Tensor loss = test::square_loss(model(test::leaf_input({3, 5}, 0, 0)));
               if (rank.rank() == 1) {
                 posted.wait(false);
                 throw Error("gone");
               }
               loss.backward();
               posted = true;
               posted.notify_all();
               auto& reducer = state.group()->reducer();
               EXPECT_THROW(reducer.finish_scatter(), CollectiveError);
               EXPECT_NO_THROW(reducer.finish());
               EXPECT_FALSE(state.group()->params()[0].sharded.grad().defined());
             }),
      Error);
}

TEST(FsdpFailure, TheForwardAfterOneThatThrewGathersWhatTheStepChanged) {
  launch(2, [](RankContext& rank) {
    const auto model = make_stack();
    shard(*model, DeviceMesh::flat(rank.group()));
    const auto parameters = model->state_dict();
    auto hook = (*model)[1].in_proj.register_forward_pre_hook(
        [](nn::Module&) { throw Error("in the middle"); });
    EXPECT_THROW(run(*model), Error);
    hook.remove();
    for (const auto& [name, tensor] : parameters) {
      Tensor shard = tensor;
      fill_(shard, 0.0);
    }
    const Tensor out = run(*model).detach();
    EXPECT_TRUE(test::bitwise_equal(out, zeros_like(out)));
  });
}

TEST(FsdpFailure, ARefusedCallLeavesItsModulesAsTheyWere) {
  launch(1, [](RankContext& rank) {
    const auto mesh = DeviceMesh::flat(rank.group());
    const auto model = make_stack();
    fully_shard((*model)[1], mesh);
    EXPECT_EQ(
        message_of<Error>([&] {
          fully_shard({&(*model)[0], &(*model)[1]}, mesh);
        }),
        "fully_shard: the module has been sharded before; each rank needs a model of its own");
    EXPECT_EQ((*model)[0].extension<State>(), nullptr);
    EXPECT_FALSE(model->named_parameters()[0].tensor.shard_spec());
    EXPECT_NO_THROW(run(*model));
  });
}

// The second of two groups cannot be made.
TEST(FsdpFailure, ACallWhoseSecondGroupIsRefusedCutsNothing) {
  launch(1, [](RankContext& rank) {
    const auto mesh = DeviceMesh::flat(rank.group());
    const std::array<int, 1> self = {0};
    const auto other = DeviceMesh::flat(rank.group()->subgroup(self, "other"));
    test::Affine model(5, 4);
    Policy policy;
    policy.shard_placement = [&](const nn::ParameterSlot& slot) {
      return slot.name == "bias" ? ShardPlacement{.dim = 3, .mesh = &other} : ShardPlacement{};
    };
    EXPECT_THROW(fully_shard(model, mesh, policy), ShapeError);
    EXPECT_FALSE(model.weight.shard_spec());
    EXPECT_EQ(fully_shard(model, mesh).group()->params().size(), 2U);
  });
}

TEST(FsdpFailure, ModulesOfOneCallMustNotContainEachOther) {
  launch(1, [](RankContext& rank) {
    const auto model = make_stack();
    EXPECT_EQ(message_of<ValueError>([&] {
                fully_shard({&(*model)[0], &(*model)[0].out_proj}, DeviceMesh::flat(rank.group()));
              }),
              "fully_shard: modules of one call must not contain each other, got one and its "
              "'out_proj'");
  });
}

/// Its forward calls another of its methods, with hooks.
class Nested final : public nn::Callable<Nested> {
 public:
  Nested() : inner(5, 4) { register_module("inner", inner); }
  Tensor forward(const Tensor& x) { return call_method(&Nested::apply, x); }
  Tensor apply(const Tensor& x) { return inner(x); }
  test::Affine inner;
};

TEST(FsdpFailure, AModuleCannotBeCalledWithinItsOwnForward) {
  launch(1, [](RankContext& rank) {
    Nested model;
    fully_shard(model, DeviceMesh::flat(rank.group()));
    const Tensor x = test::leaf_input({3, 5}, 0, 0);
    EXPECT_EQ(message_of<Error>([&] { model(x); }),
              "fully_shard: module '' was called within its own forward; call the method itself, "
              "without hooks");
    EXPECT_NO_THROW(model.call_method(&Nested::apply, x));
  });
}

TEST(FsdpFailure, AStateThatEndsTakesItsReductionsOutOfTheSharedContext) {
  launch(2, [](RankContext& rank) {
    const auto mesh = DeviceMesh::flat(rank.group());
    auto first = make_stack(), second = make_stack();
    auto& ended = shard(*first, mesh);
    auto& stays = shard(*second, mesh);
    share_comm_ctx({&ended, &stays});
    ended.set_is_last_backward(false);
    test::square_loss(run(*first)).backward();
    EXPECT_TRUE(state_of((*first)[0]).group()->reducer().scattering());
    first.reset();
    test::square_loss(run(*second)).backward();
    for (const auto& [name, tensor] : second->named_parameters()) {
      EXPECT_TRUE(tensor.grad().defined()) << name;
    }
  });
}

// One group for all: no gather of a layer tells the ranks that they are at different steps.
TEST(FsdpFailure, GradientsOfDifferentForwardsDoNotMeet) {
  std::array<std::string, 2> errors;
  EXPECT_THROW(launch(2,
                      [&](RankContext& rank) {
                        const auto model = make_stack();
                        fully_shard(*model, DeviceMesh::flat(rank.group()));
                        auto& error = errors[static_cast<std::size_t>(rank.rank())];
                        try {
                          for (int step = 0; step < 2; ++step) {
                            const Tensor out = ops::sum(run(*model));
                            if (step != rank.rank()) out.backward();  // each skips another one
                          }
                        } catch (const CollectiveError& failure) {
                          error = failure.what();
                          throw;
                        }
                      }),
               Error);
  for (const auto& error : errors) {
    EXPECT_THAT(error, ::testing::HasSubstr("((root), round 2), rank 1 ")) << error;
    EXPECT_THAT(error, ::testing::HasSubstr("((root), round 1)")) << error;
  }
}

}  // namespace
}  // namespace moegrad::fsdp::failure_test
