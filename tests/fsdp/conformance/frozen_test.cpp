// SPDX-License-Identifier: Apache-2.0

// The frozen and autograd cases of the conformance list: parameters, outputs and modules without a
// gradient.

#include <gmock/gmock.h>

#include <algorithm>
#include <map>

#include "framework/runtime/grad_mode.h"
#include "tests/framework/distributed/counting_process_group.h"
#include "tests/fsdp/conformance/event_log.h"
#include "tests/fsdp/conformance/parity.h"

namespace moegrad::fsdp::conformance::frozen_test {
namespace {

using namespace test;
using ::testing::ElementsAre;

Tensor run(MlpStack& model, int iteration, int leaf) {
  return model(test::leaf_input({3, 5}, iteration, leaf));
}

std::unique_ptr<MlpStack> make_stack() {
  return std::make_unique<MlpStack>(std::vector<std::int64_t>{5, 7, 6, 5});
}

/// Matrices are frozen.
std::unique_ptr<MlpStack> biases_only() {
  auto model = make_stack();
  for (auto& [name, tensor] : model->named_parameters())
    tensor.set_requires_grad(tensor.ndim() == 1);
  return model;
}

void shard_layers(MlpStack& model, const DeviceMesh& mesh, const Policy& policy = {}) {
  for (auto& layer : model.layers) fully_shard(*layer, mesh, policy);
  fully_shard(model, mesh, policy);
}

/// Parity on two ranks, and what they reduced meanwhile.
void expect_parity_and(const Training<MlpStack>& training,
                       const std::function<void(const CallTotals& reduced)>& check) {
  const auto reference = train_reference(training, 2);
  for (const bool reshard : {true, false}) {
    launch(2, [&](RankContext& rank) {
      const auto counts = std::make_shared<CallCounts>();
      const auto group = std::make_shared<CountingProcessGroup>(rank.group(), counts);
      const auto model = training.make();
      shard_layers(*model, DeviceMesh::flat(group), {.reshard_after_forward = reshard});
      compare_training(*model, training, reference, rank.rank());
      check(counts->total({.op = "reduce_scatter"}));
    });
  }
}

TEST(ConformanceFrozen, MixedInAGroupParityAndOnlyTheTrainableOnesTravel) {
  const Training<MlpStack> training = {.make = biases_only,
                                       .loss = [](MlpStack& model, int iteration, int leaf) {
                                         return test::square_loss(run(model, iteration, leaf));
                                       }};
  expect_parity_and(training, [](const CallTotals& reduced) {
    // Biases of 10 and 7, 14 and 6, 12 and 5 elements, cut in two: 18, 20 and 18 with padding.
    EXPECT_EQ(reduced.calls, 3 * 10);
    EXPECT_EQ(reduced.elements, (18 + 20 + 18) * 10);
  });
}

// Backward enters and leaves each layer on the tape, though no input needs a gradient.
TEST(ConformanceFrozen, PostBackwardRunsAsBackwardLeavesEachLayer) {
  launch(2, [](RankContext& rank) {
    const auto model = biases_only();
    shard_layers(*model, DeviceMesh::flat(rank.group()));
    const auto log =
        test::log_events(*model->extension<State>(), {Event::kPreBackward, Event::kPostBackward});
    test::square_loss(run(*model, 0, rank.rank())).backward();
    EXPECT_THAT(log->take(),
                ElementsAre("pre_backward ", "pre_backward 2", "post_backward 2", "pre_backward 1",
                            "post_backward 1", "pre_backward 0", "post_backward 0"));
  });
}

// Layers frozen and unfrozen between steps; what is frozen costs no reduction.
TEST(ConformanceFrozen, AcrossGroupsUnfreezingBetweenStepsParity) {
  const auto frozen = [](int iteration) { return iteration < 3 ? 0 : iteration < 6 ? 2 : 9; };
  const Training<MlpStack> training = {
      .make = make_stack, .loss = [&](MlpStack& model, int iteration, int leaf) {
        for (int i = 0; i < 3; ++i) {
          for (auto& [name, tensor] : model[static_cast<std::size_t>(i)].named_parameters()) {
            tensor.set_requires_grad(i != frozen(iteration));
          }
        }
        return test::square_loss(run(model, iteration, leaf));
      }};
  expect_parity_and(training,
                    [](const CallTotals& reduced) { EXPECT_EQ(reduced.calls, 3 * 10 - 6); });
}

// Several forwards, some of them without the tape in between.
TEST(ConformanceFrozen, MultiForwardWithNoGradCallsBetweenParity) {
  const Training<MlpStack> training = {
      .make = make_stack, .loss = [](MlpStack& model, int iteration, int leaf) {
        const auto evaluate = [&](int seed) {
          const NoGradGuard no_grad;
          return run(model, seed, leaf);
        };
        const Tensor before = evaluate(20 + iteration);
        const Tensor out = run(model, iteration, leaf);
        const Tensor between = evaluate(40 + iteration);
        model[1](test::leaf_input({3, 7}, iteration, leaf));  // on the tape, and dropped
        return test::square_loss(out + before + between);
      }};
  for (const bool reshard : {true, false}) {
    test::expect_parity(2, training, [&](MlpStack& model, RankContext& rank) {
      shard_layers(model, DeviceMesh::flat(rank.group()), {.reshard_after_forward = reshard});
    });
  }
}

/// Two results of one input, and of modules of their own.
class TwoResults final : public nn::Callable<TwoResults> {
 public:
  TwoResults() : left(5, 6, 4), right(5, 7, 4) {
    register_module("left", left);
    register_module("right", right);
    test::init_random(*this);
  }
  std::pair<Tensor, Tensor> forward(const Tensor& x) { return {left(x), right(x)}; }
  test::Mlp left, right;
};

// Grads of what is unused stay undefined, or what they were, in the reference and in shards alike.
TEST(ConformanceAutograd, UnusedForwardOutputParity) {
  const Training<TwoResults> training = {
      .make = [] { return std::make_unique<TwoResults>(); },
      .loss =
          [](TwoResults& model, int iteration, int leaf) {
            const auto [left, right] = model(test::leaf_input({3, 5}, iteration, leaf));
            if (iteration % 4 == 0) return test::square_loss(left);
            if (iteration % 4 == 1) return test::square_loss(right);
            return test::square_loss(left + right);
          }};
  for (const bool several_groups : {false, true}) {
    test::expect_parity(2, training, [&](TwoResults& model, RankContext& rank) {
      const auto mesh = DeviceMesh::flat(rank.group());
      if (several_groups) {
        fully_shard(model.left, mesh);
        fully_shard(model.right, mesh);
      }
      fully_shard(model, mesh);
    });
  }
}

/// Its `spare` layer may not run.
class WithSpare final : public nn::Callable<WithSpare> {
 public:
  WithSpare() : first(5, 6, 5), spare(5, 7, 5), last(5, 3, 4) {
    register_module("first", first);
    register_module("spare", spare);
    register_module("last", last);
    test::init_random(*this);
  }
  Tensor forward(const Tensor& x, bool use_spare) {
    const Tensor hidden = first(x);
    return last(use_spare ? spare(hidden) : hidden);
  }
  test::Mlp first, spare, last;
};

TEST(ConformanceAutograd, UnusedModuleParityAndNoCollectivesForIt) {
  const Training<WithSpare> training = {
      .make = [] { return std::make_unique<WithSpare>(); },
      .loss =
          [](WithSpare& model, int iteration, int leaf) {
            const Tensor x = test::leaf_input({3, 5}, iteration, leaf);
            return test::square_loss(model(x, iteration % 3 == 1));
          }};
  const auto reference = test::train_reference(training, 2);
  launch(2, [&](RankContext& rank) {
    const auto model = training.make();
    const auto mesh = DeviceMesh::flat(rank.group());
    for (auto* module : {&model->first, &model->spare, &model->last}) {
      fully_shard(*module, mesh, {.forward_prefetch = 0});
    }
    auto& root = fully_shard(*model, mesh);
    const auto log = test::log_events(root, {Event::kGather, Event::kReduce});
    test::compare_training(*model, training, reference, rank.rank());
    const auto events = log->take();
    EXPECT_EQ(std::ranges::count(events, "gather spare"), 2 * 3);
    EXPECT_EQ(std::ranges::count(events, "reduce spare"), 3);
    EXPECT_EQ(std::ranges::count(events, "reduce first"), 10);
  });
}

/// Takes and returns what no extension can look into.
class Dictionaries final : public nn::Callable<Dictionaries> {
 public:
  using Dictionary = std::map<std::string, std::vector<Tensor>>;
  Dictionaries() : first(5, 6, 5), last(5, 3, 4) {
    register_module("first", first);
    register_module("last", last);
    test::init_random(*this);
  }
  Dictionary forward(const Dictionary& in) {
    const Tensor hidden = first(in.at("x")[0]);
    return {{"hidden", {hidden, in.at("x")[1]}}, {"out", {last(hidden), last(in.at("x")[1])}}};
  }
  test::Mlp first, last;
};

TEST(ConformanceAutograd, NonTensorContainersParity) {
  const Training<Dictionaries> training = {
      .make = [] { return std::make_unique<Dictionaries>(); },
      .loss =
          [](Dictionaries& model, int iteration, int leaf) {
            const Tensor x = test::leaf_input({3, 5}, iteration, leaf);
            const auto result = model(Dictionaries::Dictionary{{"x", {x, ops::mul(x, 0.5)}}});
            return test::square_loss(result.at("out")[iteration % 2 == 0 ? 0 : 1]) +
                   test::square_loss(result.at("hidden")[0]);
          }};
  test::expect_parity(2, training, [](Dictionaries& model, RankContext& rank) {
    const auto mesh = DeviceMesh::flat(rank.group());
    fully_shard(model.first, mesh);
    fully_shard(model, mesh);
  });
}

// A parameter that is used outside its module too, before it: backward comes to that use when it
// has left the module and reduced. The late gradient is reduced by itself, so the order of the sum
// is another one: PyTorch's tolerance.
TEST(ConformanceAutograd, AUseOutsideTheModuleIsReducedToo) {
  const auto loss_of = [](TwoResults& model, int leaf) {
    const Tensor x = ops::add(test::leaf_input({3, 7}, 0, leaf), model.right.in_proj.bias);
    return test::square_loss(model.right(ops::narrow(x, 1, 0, 5)));
  };
  TwoResults whole;
  for (int leaf = 0; leaf < 2; ++leaf) loss_of(whole, leaf).backward();
  launch(2, [&](RankContext& rank) {
    TwoResults model;
    auto& state = fully_shard(model.right, DeviceMesh::flat(rank.group()));
    state.unshard();
    loss_of(model, rank.rank()).backward();
    const auto expected = whole.right.named_parameters(), got = model.right.named_parameters();
    for (std::size_t i = 0; i < got.size(); ++i) {
      const auto& [name, tensor] = got[i];
      EXPECT_TRUE(test::all_close(tensor.grad(), test::part_of(expected[i].tensor.grad(), tensor),
                                  1.3e-6, 1e-5))
          << name;
    }
  });
}

}  // namespace
}  // namespace moegrad::fsdp::conformance::frozen_test
