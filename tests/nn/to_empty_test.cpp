// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <memory>

#include "framework/runtime/arena.h"
#include "framework/runtime/rank_context.h"
#include "framework/tensor/meta.h"
#include "nn/init.h"
#include "nn/linear.h"
#include "nn/module.h"
#include "nn/moe.h"
#include "nn/rms_norm.h"
#include "tests/testing.h"

namespace moegrad::nn::to_empty_test {
namespace {

using namespace test;

/// A norm, and two layers that share one weight [3, 4].
class Tied final : public Callable<Tied> {
 public:
  Tied() : norm_({.dim = 4}), in_({.in_features = 4, .out_features = 3}), out_(in_.weight()) {
    register_module("norm", norm_);
    register_module("in", in_);
    register_module("out", out_);
  }
  Tensor forward(const Tensor& x) { return in_(norm_(x)); }
  RMSNorm& norm() { return norm_; }

 private:
  RMSNorm norm_;
  Linear in_, out_;
};

std::unique_ptr<Tied> make_meta() {
  const MetaGuard meta;
  return std::make_unique<Tied>();
}

TEST(ToEmpty, AllocatesEachParameterOnceUnderItsTag) {
  RankContext context;
  const RankContextGuard rank(context);
  const auto module = make_meta();
  const auto before = module->named_parameters();
  EXPECT_EQ(context.arena()->live().total(), 0);
  module->to_empty();
  EXPECT_EQ(context.arena()->live()[MemoryTag::kParameters], (4 + 12) * 4);
  EXPECT_EQ(context.arena()->peak().total(), (4 + 12) * 4);
  const auto after = module->named_parameters();
  ASSERT_EQ(after.size(), 2U);
  for (std::size_t i = 0; i < after.size(); ++i) {
    EXPECT_FALSE(after[i].tensor.is_meta());
    EXPECT_TRUE(after[i].tensor.is(before[i].tensor));
    EXPECT_TRUE(after[i].tensor.requires_grad());
  }
}

TEST(ToEmpty, LeavesParametersThatHaveBytes) {
  Tied module;
  init_weights(module, 1, 0.02);
  const Tensor weight = module.named_parameters()[1].tensor;
  const Tensor copy = clone(weight);
  module.to_empty();
  EXPECT_TRUE(bitwise_equal(weight, copy));
}

TEST(ToEmpty, ThenInitWeightsGivesTheValuesOfAnOrdinaryModule) {
  Tied ordinary;
  init_weights(ordinary, 3, 0.02);
  const auto module = make_meta();
  module->to_empty();
  init_weights(*module, 3, 0.02);
  const auto a = ordinary.state_dict(), b = module->state_dict();
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(bitwise_equal(a[i].tensor, b[i].tensor));
}

TEST(ToEmpty, ThenAStateDictLoads) {
  Tied ordinary;
  init_weights(ordinary, 3, 0.02);
  const auto module = make_meta();
  module->to_empty();
  module->load_state_dict(ordinary.state_dict());
  const auto a = ordinary.state_dict(), b = module->state_dict();
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(bitwise_equal(a[i].tensor, b[i].tensor));
}

TEST(ToEmpty, BeforeItEveryUseNamesTheParameter) {
  const auto module = make_meta();
  EXPECT_EQ(message_of<Error>([&] { init_weights(*module, 1, 0.02); }),
            "init_weights: parameter 'norm.weight' has no bytes yet: it was made on the meta "
            "device; call to_empty()");
  Tied ordinary;
  EXPECT_EQ(message_of<Error>([&] { module->load_state_dict(ordinary.state_dict()); }),
            "tensor: 'norm.weight' has no bytes yet: it was made on the meta device; call "
            "to_empty()");
  EXPECT_EQ(message_of<Error>([&] {
              (*module)(randn({2, 4}, 1, Dtype::kFloat32));
            }),
            "tensor: 'norm.weight' has no bytes yet: it was made on the meta device; call "
            "to_empty(); in module norm");
}

/// Keeps a parameter of its own in the place of a module's.
class Keeper final : public ModuleExtension {
 public:
  explicit Keeper(ParameterSlot slot) : slot_(std::move(slot)), kept_(make_kept()) {
    restore_parameters();
  }
  void restore_parameters() override { *slot_.tensor = kept_; }
  void to_empty() override {
    calls++;
    if (fills) kept_.storage().refill();
  }
  void gather() { *slot_.tensor = Tensor::zeros(kept_.shape()); }
  const Tensor& kept() const { return kept_; }

  int calls = 0;
  bool fills = true;

 private:
  static Tensor make_kept() {
    const MetaGuard meta;
    return Tensor::empty({2});
  }

  ParameterSlot slot_;
  Tensor kept_;
};

TEST(ToEmpty, AsksExtensionsFirst) {
  RankContext context;
  const RankContextGuard rank(context);
  const auto module = make_meta();
  const auto keeper = std::make_shared<Keeper>(module->norm().parameter_slots()[0]);
  module->norm().attach(keeper);
  module->to_empty();
  EXPECT_EQ(keeper->calls, 1);
  EXPECT_FALSE(keeper->kept().is_meta());
  // The keeper's own bytes under the tag that it chose, the rest as parameters.
  EXPECT_EQ(context.arena()->live()[MemoryTag::kActivations], 8);
  EXPECT_EQ(context.arena()->live()[MemoryTag::kParameters], 12 * 4);
}

TEST(ToEmpty, AllocatesWhatAnExtensionLeftInTheSlots) {
  RankContext context;
  const RankContextGuard rank(context);
  const auto module = make_meta();
  const auto keeper = std::make_shared<Keeper>(module->norm().parameter_slots()[0]);
  keeper->fills = false;
  module->norm().attach(keeper);
  module->to_empty();
  EXPECT_EQ(context.arena()->live()[MemoryTag::kParameters], (2 + 12) * 4);
}

TEST(InitWeights, FillsTheParametersThatAnExtensionKeeps) {
  Tied module;
  const auto keeper = std::make_shared<Keeper>(module.norm().parameter_slots()[0]);
  module.norm().attach(keeper);
  module.to_empty();
  Tensor kept = keeper->kept();
  fill_(kept, 7.0);
  keeper->gather();
  init_weights(module, 1, 0.02);
  EXPECT_TRUE(bitwise_equal(kept, Tensor::ones({2})));
}

}  // namespace
}  // namespace moegrad::nn::to_empty_test
