// SPDX-License-Identifier: Apache-2.0

// Hooks and flags of what stands in the modules, and switches that decide what is gathered when.

#include "framework/distributed/launch.h"
#include "framework/runtime/grad_mode.h"
#include "fsdp/gradient_reducer.h"
#include "tests/fsdp/conformance/event_log.h"
#include "tests/fsdp/conformance/parity.h"

namespace moegrad::fsdp::registration_test {
namespace {

using test::MlpStack;

State& state_of(nn::Module& module) { return *module.extension<State>(); }

std::unique_ptr<MlpStack> make_stack() {
  return std::make_unique<MlpStack>(std::vector<std::int64_t>{5, 7, 6, 4});
}

State& shard(MlpStack& model, const DeviceMesh& mesh) {
  for (auto& layer : model.layers) fully_shard(*layer, mesh);
  return fully_shard(model, mesh);
}

Tensor loss_of(MlpStack& model) { return test::square_loss(model(test::leaf_input({3, 5}, 0, 0))); }

TEST(FsdpRegistration, PostAccumulateHooksOfAShardRunWhenItsGradientIsReduced) {
  launch(2, [](RankContext& rank) {
    const auto model = make_stack();
    shard(*model, DeviceMesh::flat(rank.group()));
    std::vector<std::string> called;
    for (const auto& [name, tensor] : model->named_parameters()) {
      tensor.register_post_accumulate_grad_hook([&called, name = name](const Tensor& leaf) {
        EXPECT_EQ(leaf.grad().shape(), leaf.shape()) << name;
        called.push_back(name);
        leaf.set_grad(Tensor());
      });
    }
    for (int i = 0; i < 3; ++i) {
      called.clear();
      loss_of(*model).backward();
      EXPECT_EQ(called.size(), 12U);
    }
  });
}

TEST(FsdpRegistration, FreezingAGatheredParameterFreezesItsShard) {
  launch(2, [](RankContext& rank) {
    const auto model = make_stack();
    shard(*model, DeviceMesh::flat(rank.group()));
    auto& state = state_of((*model)[1]);
    state.unshard();
    (*model)[1].in_proj.weight.set_requires_grad(false);
    state.reshard();
    EXPECT_FALSE((*model)[1].in_proj.weight.requires_grad());
    EXPECT_TRUE((*model)[1].in_proj.bias.requires_grad());
    state.unshard();
    state.group()->params()[0].sharded.set_requires_grad(true);  // its shard meanwhile: for later
    state.reshard();
    EXPECT_TRUE((*model)[1].in_proj.weight.requires_grad());
  });
}

TEST(FsdpRegistration, AGroupTakesNoParametersThatAreGatheredJustNow) {
  launch(2, [](RankContext& rank) {
    const auto model = make_stack();
    const auto mesh = DeviceMesh::flat(rank.group());
    for (auto& layer : model->layers) fully_shard(*layer, mesh).unshard();
    EXPECT_EQ(fully_shard(*model, mesh).group(), nullptr);
    EXPECT_NO_THROW(loss_of(*model).backward());
  });
}

TEST(FsdpRegistration, AnExplicitNoToReshardingHoldsWithoutTheTapeToo) {
  launch(2, [](RankContext& rank) {
    const NoGradGuard no_grad;
    for (const bool reshard : {false, true}) {
      const auto model = make_stack();
      auto& root = shard(*model, DeviceMesh::flat(rank.group()));
      root.set_reshard_after_forward(reshard);
      loss_of(*model);
      for (auto& layer : model->layers) {
        EXPECT_EQ(state_of(*layer).group()->is_sharded(), reshard);
      }
    }
  });
}

TEST(FsdpRegistration, SynchronizingByHandReducesUnusedParametersWhereBackwardWould) {
  launch(2, [](RankContext& rank) {
    const auto model = make_stack();
    auto& root = fully_shard(*model, DeviceMesh::flat(rank.group()));
    root.set_reduce_scatter_unused_params(true);
    root.set_requires_gradient_sync(false);
    // Each rank runs a layer of its own.
    const Tensor x = test::leaf_input({3, rank.rank() == 0 ? 5 : 7}, 0, 0);
    root.unshard();
    test::square_loss((*model)[static_cast<std::size_t>(rank.rank())](x)).backward();
    root.reshard();
    root.group()->reducer().keep();
    root.synchronize_gradients();
    for (const auto& [name, tensor] : model->named_parameters()) {
      EXPECT_TRUE(tensor.grad().defined()) << name;
    }
  });
}

/// Whether the reduction of the last layer is in flight when backward leaves the one before it.
class Watch final : public Observer {
 public:
  explicit Watch(State& last) : last_(last) {}
  void on_event(Event event, const std::string& group) override {
    if (event != Event::kPostBackward || group != "1") return;
    scattering = last_.group()->reducer().scattering();
  }
  bool scattering = false;

 private:
  State& last_;
};

TEST(FsdpRegistration, AFrozenLayerWaitsForNoReduction) {
  launch(2, [](RankContext& rank) {
    const auto model = make_stack();
    for (auto& [name, tensor] : (*model)[1].named_parameters()) tensor.set_requires_grad(false);
    auto& root = shard(*model, DeviceMesh::flat(rank.group()));
    const auto watch = std::make_shared<Watch>(state_of((*model)[2]));
    root.set_observer(watch);
    loss_of(*model).backward();
    EXPECT_TRUE(watch->scattering);
  });
}

}  // namespace
}  // namespace moegrad::fsdp::registration_test
