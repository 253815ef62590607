// SPDX-License-Identifier: Apache-2.0

// reset_iter_state after an exception that every rank survives, and grouped calls of which forward
// runs only a part.

#include <gmock/gmock.h>

#include "fsdp/gradient_reducer.h"
#include "tests/fsdp/conformance/event_log.h"
#include "tests/fsdp/conformance/parity.h"

namespace moegrad::fsdp::conformance::recovery_test {
namespace {

using namespace test;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

State& state_of(nn::Module& module) { return *module.extension<State>(); }

Tensor plain_loss(MlpStack& model, int iteration, int leaf) {
  return test::square_loss(model(test::leaf_input({3, 5}, iteration, leaf)));
}

Training<MlpStack> three_layers() {
  return {.make =
              [] {
                return std::make_unique<MlpStack>(std::vector<std::int64_t>{5, 7, 6, 4});
              },
          .loss = plain_loss};
}

void shard(MlpStack& model, RankContext& rank, const Policy& policy = {}) {
  const auto mesh = DeviceMesh::flat(rank.group());
  for (std::size_t i = 1; i < model.layers.size(); ++i) fully_shard(model[i], mesh, policy);
  fully_shard(model, mesh, policy);
}

class Broken : public Error {
 public:
  using Error::Error;
};

// Within the second layer's forward.
void fail_in_forward(MlpStack& model, int leaf) {
  auto hook = model[1].in_proj.register_forward_pre_hook([](nn::Module&) { throw Broken("x"); });
  EXPECT_THROW(plain_loss(model, 77, leaf), Broken);
  hook.remove();
}

// When the last layer has been reduced and the second one is in backward.
void fail_in_backward(MlpStack& model, int leaf) {
  auto hook = model[1].in_proj.register_backward_hook([](nn::Module&) { throw Broken("x"); });
  const Tensor loss = plain_loss(model, 77, leaf);
  EXPECT_THROW(loss.backward(), Broken);
  hook.remove();
  EXPECT_EQ(message_of<Error>([&] { plain_loss(model, 77, leaf); }),
            "fully_shard: the last backward ended in an exception; call reset_iter_state()");
}

TEST(ConformanceRecovery, ResetIterStateAfterAnExceptionParity) {
  const auto reference = test::train_reference(three_layers(), 2);
  for (const bool reshard : {true, false}) {
    launch(2, [&](RankContext& rank) {
      auto training = three_layers();
      training.loss = [](MlpStack& model, int iteration, int leaf) {
        if (iteration % 3 == 1) fail_in_forward(model, leaf);
        if (iteration % 3 == 2) fail_in_backward(model, leaf);
        if (iteration % 3 != 0) state_of(model).reset_iter_state();
        return plain_loss(model, iteration, leaf);
      };
      const auto model = training.make();
      shard(*model, rank, {.reshard_after_forward = reshard});
      test::compare_training(*model, training, reference, rank.rank());
    });
  }
}

TEST(ConformanceRecovery, ResetIterStateDropsInFlightAndKeptGradientsAndReshards) {
  launch(2, [](RankContext& rank) {
    const auto model = three_layers().make();
    shard(*model, rank);
    auto& root = state_of(*model);
    root.reset_iter_state();  // before the first forward: nothing to do
    root.set_requires_gradient_sync(false);
    plain_loss(*model, 0, rank.rank()).backward();
    EXPECT_EQ(root.get_pending_gradients().size(), 12U);
    root.set_requires_gradient_sync(true);
    fail_in_backward(*model, rank.rank());
    EXPECT_FALSE(root.group()->is_sharded());
    root.reset_iter_state();
    EXPECT_THAT(root.get_pending_gradients(), IsEmpty());
    for (auto* module : std::vector<nn::Module*>{model.get(), &(*model)[1], &(*model)[2]}) {
      EXPECT_TRUE(state_of(*module).group()->is_sharded());
      EXPECT_FALSE(state_of(*module).group()->reducer().scattering());
    }
    for (const auto& [name, tensor] : model->named_parameters()) {
      EXPECT_FALSE(tensor.grad().defined()) << name;
    }
    EXPECT_EQ(message_of<Error>([&] { state_of((*model)[1]).reset_iter_state(); }),
              "reset_iter_state: '1' is not the root");
  });
}

// --- grouped calls

/// Its `norm` and `head` are one group; forward may leave the head to the caller.
class Headed final : public nn::Callable<Headed> {
 public:
  Headed() : body(5, 7, 6), norm({.dim = 6}), head(6, 4) {
    register_module("body", body);
    register_module("norm", norm);
    register_module("head", head);
    test::init_random(*this);
  }
  Tensor forward(const Tensor& x, bool run_head) {
    const Tensor hidden = norm(body(x));
    return run_head ? head(hidden) : hidden;
  }
  test::Mlp body;
  nn::RMSNorm norm;
  test::Affine head;
};

State& shard(Headed& model, RankContext& rank, bool head_first = false) {
  const auto mesh = DeviceMesh::flat(rank.group());
  if (head_first) {
    fully_shard({&model.head, &model.norm}, mesh);
  } else {
    fully_shard({&model.norm, &model.head}, mesh);
  }
  return fully_shard(model, mesh);
}

// Gathered when the first module runs, freed after the last; in part, when the outermost forward
// ends. Either way backward frees and reduces once, as it leaves the module that ran first, which
// need not be the first of the list.
void check_events_of_grouped_calls(RankContext& rank, bool head_first) {
  Headed model;
  auto& root = shard(model, rank, head_first);
  state_of(model.norm).set_reshard_after_forward(true);
  const auto log = test::log_events(root, {Event::kUnshard, Event::kPrefetch, Event::kReshard,
                                           Event::kPostForward, Event::kPostBackward});
  const Tensor x = test::leaf_input({3, 5}, 0, rank.rank());
  const Tensor all = model(x, true);
  EXPECT_THAT(log->take(), ElementsAre("unshard ", "unshard norm", "post_forward norm",
                                       "reshard norm", "post_forward norm", "post_forward "));
  test::square_loss(all).backward();
  const auto backward = ElementsAre("prefetch norm", "reshard norm", "post_backward norm",
                                    "reshard ", "post_backward ");
  EXPECT_THAT(log->take(), backward);
  const Tensor part = model(x, false);
  EXPECT_THAT(log->take(), ElementsAre("unshard ", "prefetch norm", "post_forward norm",
                                       "reshard norm", "post_forward "));
  test::square_loss(part).backward();
  EXPECT_THAT(log->take(), backward);
}

TEST(ConformanceGroupedCall, IsGatheredAtTheFirstModuleAndFreedAfterTheLastOrWithTheRoot) {
  for (const bool head_first : {false, true}) {
    launch(2, [&](RankContext& rank) { check_events_of_grouped_calls(rank, head_first); });
  }
}

// An exception between the modules of a group: the next forward begins the group anew, and so knows
// when it comes.
TEST(ConformanceGroupedCall, AForwardThatFailedInsideAGroupIsForgotten) {
  launch(2, [](RankContext& rank) {
    Headed model;
    auto& root = shard(model, rank);
    const Tensor x = test::leaf_input({3, 5}, 0, rank.rank());
    auto hook = model.head.register_forward_pre_hook([](nn::Module&) { throw Broken("x"); });
    EXPECT_THROW(model(x, true), Broken);
    hook.remove();
    test::square_loss(model(x, true)).backward();
    const auto log = test::log_events(root, {Event::kUnshard, Event::kPrefetch});
    model(x, true);
    EXPECT_THAT(log->take(), ElementsAre("unshard ", "prefetch norm"));
  });
}

TEST(ConformanceGroupedCall, ParityWhenForwardRunsAllOrPart) {
  const Training<Headed> training = {
      .make = [] { return std::make_unique<Headed>(); },
      .loss =
          [](Headed& model, int iteration, int leaf) {
            return test::square_loss(
                model(test::leaf_input({3, 5}, iteration, leaf), iteration % 3 != 1));
          }};
  test::expect_parity(2, training, [](Headed& model, RankContext& rank) { shard(model, rank); });
}

// The chunked loss: forward runs the norm, then the head runs on one chunk after the other. Each
// call of the group is reduced by itself, so the sum has another order: PyTorch's tolerance.
TEST(ConformanceGroupedCall, PartOfAGroupThenStandaloneCallsParity) {
  const auto chunked_loss = [](Headed& model, int leaf) {
    const Tensor hidden = model(test::leaf_input({4, 5}, 0, leaf), false);
    Tensor loss = test::square_loss(model.head(ops::narrow(hidden, 0, 0, 2)));
    return loss + test::square_loss(model.head(ops::narrow(hidden, 0, 2, 2)));
  };
  Headed whole;
  for (int leaf = 0; leaf < 2; ++leaf) chunked_loss(whole, leaf).backward();
  for (const bool reshard : {true, false}) {
    launch(2, [&](RankContext& rank) {
      Headed model;
      shard(model, rank).set_reshard_after_forward(reshard);
      for (int iteration = 0; iteration < 2; ++iteration) {
        chunked_loss(model, rank.rank()).backward();
        const auto expected = whole.named_parameters(), got = model.named_parameters();
        for (std::size_t i = 0; i < got.size(); ++i) {
          const auto& [name, tensor] = got[i];
          ASSERT_TRUE(tensor.grad().defined()) << name;
          EXPECT_TRUE(test::all_close(
              tensor.grad(), test::part_of(expected[i].tensor.grad(), tensor), 1.3e-6, 1e-5))
              << name;
        }
        model.zero_grad();
      }
    });
  }
}

}  // namespace
}  // namespace moegrad::fsdp::conformance::recovery_test
