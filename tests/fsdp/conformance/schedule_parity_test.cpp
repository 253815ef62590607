// SPDX-License-Identifier: Apache-2.0

// Rows 6, 7, 8 and 25: parity whatever runs when, and whatever is gathered ahead.

#include "framework/runtime/grad_mode.h"
#include "tests/fsdp/conformance/parity.h"

namespace moegrad::fsdp::conformance::schedule_parity_test {
namespace {

using namespace test;

// Row 6: a step of the root, then of a wrapped module alone: it stays no root and reduces alike.
TEST(Conformance, Row06_ParityRootThenNonRootForwardBackward) {
  const std::vector<std::int64_t> dims = {5, 5, 5, 5};
  Training<MlpStack> training = {
      .make = [=] { return std::make_unique<MlpStack>(dims); },
      .loss =
          [](MlpStack& model, int iteration, int leaf) {
            const Tensor x = test::leaf_input({3, 5}, iteration, leaf);
            if (iteration % 2 == 0) return test::square_loss(model(x));
            return test::square_loss(model[static_cast<std::size_t>(iteration) % 3](x));
          }};
  test::expect_parity(2, training, [](MlpStack& model, RankContext& rank) {
    const auto mesh = DeviceMesh::flat(rank.group());
    for (auto& layer : model.layers) fully_shard(*layer, mesh);
    fully_shard(model, mesh);
  });
}

// Row 7: one module that forward runs twice.
class RunsTwice final : public nn::Callable<RunsTwice> {
 public:
  RunsTwice() : first(6, 5, 6), last(6, 7, 3) {
    register_module("first", first);
    register_module("last", last);
    test::init_random(*this);
  }
  Tensor forward(const Tensor& x) { return last(first(first(x))); }
  test::Mlp first, last;
};

/// The same function, with a copy for the second run.
class TwoCopies final : public nn::Callable<TwoCopies> {
 public:
  TwoCopies() : first(6, 5, 6), last(6, 7, 3), again(6, 5, 6) {
    register_module("first", first);
    register_module("last", last);
    test::init_random(*this);
    register_module("again", again);
    again.load_state_dict(first.state_dict());
  }
  Tensor forward(const Tensor& x) { return last(again(first(x))); }
  /// Backward meets the second run first.
  void sum_gradients() {
    const auto first_run = first.named_parameters(), second_run = again.named_parameters();
    for (std::size_t i = 0; i < first_run.size(); ++i) {
      Tensor sum = clone(second_run[i].tensor.grad());
      add_(sum, first_run[i].tensor.grad());
      first_run[i].tensor.set_grad(sum);
      second_run[i].tensor.set_grad(clone(sum));
    }
  }
  test::Mlp first, last, again;
};

template <class Model>
Training<Model> one_input() {
  return {.make = [] { return std::make_unique<Model>(); },
          .loss =
              [](Model& model, int iteration, int leaf) {
                return test::square_loss(model(test::leaf_input({3, 6}, iteration, leaf)));
              }};
}

// A group reduces after each run, as in PyTorch, so each run's gradients are summed over the ranks
// before they meet: the reference sums in that order and the result is bitwise equal.
TEST(Conformance, Row07_ParityModuleUsedTwiceInForward) {
  auto reference = test::train_reference<TwoCopies>(
      one_input<TwoCopies>(), 2, [](TwoCopies& model) { model.sum_gradients(); });
  for (auto& after : reference.after) {  // forget the copy
    after.parameters.resize(8);
    after.gradients.resize(8);
  }
  for (const bool reshard : {true, false}) {
    launch(2, [&](RankContext& rank) {
      RunsTwice model;
      const auto mesh = DeviceMesh::flat(rank.group());
      fully_shard(model.first, mesh, {.reshard_after_forward = reshard});
      fully_shard(model, mesh);
      test::compare_training(model, one_input<RunsTwice>(), reference, rank.rank());
    });
  }
}

std::vector<nn::Module*> modules(MlpStack& model, const std::vector<std::size_t>& indices) {
  std::vector<nn::Module*> chosen;
  for (const auto i : indices) chosen.push_back(&model[i]);
  return chosen;
}

Training<MlpStack> four_layers() {
  return {.make =
              [] {
                return std::make_unique<MlpStack>(std::vector<std::int64_t>{5, 6, 7, 6, 5});
              },
          .loss =
              [](MlpStack& model, int iteration, int leaf) {
                return test::square_loss(model(test::leaf_input({3, 5}, iteration, leaf)));
              }};
}

// Row 8: two layers ahead in forward and in backward.
TEST(Conformance, Row08_ParityExplicitPrefetchOfTwoAndTwo) {
  test::expect_parity(2, four_layers(), [](MlpStack& model, RankContext& rank) {
    const auto mesh = DeviceMesh::flat(rank.group());
    for (auto& layer : model.layers) fully_shard(*layer, mesh);
    fully_shard(model, mesh);
    const auto state = [&](std::size_t i) -> State& { return *model[i].extension<State>(); };
    state(0).set_modules_to_forward_prefetch(modules(model, {1, 2}));
    state(1).set_modules_to_forward_prefetch(modules(model, {2, 3}));
    state(3).set_modules_to_backward_prefetch(modules(model, {2, 1}));
    state(2).set_modules_to_backward_prefetch(modules(model, {1, 0}));
  });
}

// Row 25: prefetch lists that name the wrong modules cost memory and gathers, no bit of the result.
TEST(Conformance, Row25_ParityWhenTheWrongModulesArePrefetched) {
  test::expect_parity(2, four_layers(), [](MlpStack& model, RankContext& rank) {
    const auto mesh = DeviceMesh::flat(rank.group());
    for (auto& layer : model.layers) fully_shard(*layer, mesh);
    auto& root = fully_shard(model, mesh);
    for (std::size_t i = 0; i < 4; ++i) {
      auto& state = *model[i].extension<State>();
      state.set_modules_to_forward_prefetch(modules(model, {(i + 3) % 4, i}));
      state.set_modules_to_backward_prefetch(modules(model, {(i + 1) % 4, 3}));
    }
    root.set_modules_to_forward_prefetch(modules(model, {3, 2}));
  });
}

// Row 25: what was gathered for nothing is freed when a forward without the tape ends, and when
// backward does.
TEST(Conformance, Row25_WhatWasPrefetchedForNothingIsFreed) {
  launch(2, [](RankContext& rank) {
    const auto model = four_layers().make();
    const auto mesh = DeviceMesh::flat(rank.group());
    for (auto& layer : model->layers) fully_shard(*layer, mesh);
    fully_shard(*model, mesh);
    const auto state = [&](std::size_t i) -> State& { return *(*model)[i].extension<State>(); };
    state(3).set_modules_to_forward_prefetch(modules(*model, {0, 1}));
    state(0).set_modules_to_backward_prefetch(modules(*model, {2, 3}));
    const Tensor x = test::leaf_input({3, 5}, 0, rank.rank());
    {
      const NoGradGuard no_grad;
      (*model)(x);
    }
    for (std::size_t i = 0; i < 4; ++i) EXPECT_TRUE(state(i).group()->is_sharded()) << i;
    const Tensor out = (*model)(x);
    EXPECT_TRUE(state(0).group()->is_gathering());
    test::square_loss(out).backward();
    for (std::size_t i = 0; i < 4; ++i) EXPECT_TRUE(state(i).group()->is_sharded()) << i;
  });
}

}  // namespace
}  // namespace moegrad::fsdp::conformance::schedule_parity_test
