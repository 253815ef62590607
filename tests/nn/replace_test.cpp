// SPDX-License-Identifier: Apache-2.0

// Module::replace: parts of a layer that a user replaces by modules of his own.
#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "nn/attention.h"
#include "nn/init.h"
#include "nn/linear.h"
#include "nn/mlp.h"
#include "nn/moe.h"
#include "nn/recompute.h"
#include "nn/sequential.h"
#include "ops/elementwise.h"
#include "tests/nn/small_modules.h"
#include "tests/testing.h"

namespace moegrad::nn::replace_test {
namespace {

using namespace test;
using ::testing::ElementsAre;

/// y = base(x) + B A x, around the module that it takes the place of.
///
/// Reference: Hu et al., "LoRA", 2021, https://arxiv.org/abs/2106.09685
class Adapter final : public Callable<Adapter> {
 public:
  Adapter(TensorModule base, std::int64_t in, std::int64_t out)
      : base_(std::move(base)),
        a_({.in_features = in, .out_features = 2, .dtype = Dtype::kFloat64}),
        b_({.in_features = 2, .out_features = out, .dtype = Dtype::kFloat64}) {
    register_module("base", base_);
    register_module("a", a_);
    register_module("b", b_);
  }
  Tensor forward(const Tensor& x) { return base_(x) + b_(a_(x)); }

 private:
  TensorModule base_;
  Linear a_, b_;
};

MLP make_mlp() { return MLP({.hidden_size = 4, .intermediate_size = 6, .dtype = Dtype::kFloat64}); }

TEST(Replace, AnAdapterTakesAProjectionsPlaceAndHasItAsAChild) {
  MLP mlp = make_mlp();
  init_weights(mlp, 1, 0.5);
  const Tensor x = randn({3, 4});
  const Tensor before = mlp(x).detach();
  const auto up_proj = mlp.part<Tensor(const Tensor&)>("up_proj");
  const Tensor weight = up_proj.get<Linear>()->weight();
  mlp.replace("up_proj", TensorModule(std::make_shared<Adapter>(up_proj, 4, 6)));
  EXPECT_THAT(names_of(mlp),
              ElementsAre("gate_proj.weight", "up_proj.base.weight", "up_proj.a.weight",
                          "up_proj.b.weight", "down_proj.weight"));
  EXPECT_TRUE(mlp.named_parameters()[1].tensor.is(weight));
  EXPECT_EQ(weight.storage().name(), "up_proj.base.weight");
  EXPECT_TRUE(bitwise_equal(mlp(x).detach(), before));  // b is zero
  init_parameter(mlp, "up_proj.a.weight", InitialValues::ones(), 1);
  init_parameter(mlp, "up_proj.b.weight", InitialValues::ones(), 1);
  EXPECT_FALSE(bitwise_equal(mlp(x).detach(), before));
  mlp(x).backward(randn({3, 4}, 2));
  EXPECT_TRUE(mlp.named_parameters()[3].tensor.grad().defined());
}

TEST(Replace, FindsAModuleByItsFullName) {
  Sequential net(std::make_unique<Doubled>());
  net.push_back(std::make_unique<MLP>(
      MLP::Config{.hidden_size = 4, .intermediate_size = 6, .dtype = Dtype::kFloat64}));
  net.replace("1.gate_proj",
              TensorModule(std::make_shared<Sequential>(std::make_unique<Linear>(Linear::Config{
                  .in_features = 4, .out_features = 6, .bias = true, .dtype = Dtype::kFloat64}))));
  EXPECT_THAT(names_of(net), ElementsAre("1.gate_proj.0.weight", "1.gate_proj.0.bias",
                                         "1.up_proj.weight", "1.down_proj.weight"));
  net.replace("1", TensorModule(std::make_shared<Doubled>()));
  EXPECT_TRUE(names_of(net).empty());
  const Tensor x = randn({3, 4});
  EXPECT_TRUE(bitwise_equal(net(x), x * 4.0));
}

TEST(Replace, AttentionTakesOtherProjections) {
  Attention attention({.hidden_size = 4,
                       .num_heads = 2,
                       .num_key_value_heads = 1,
                       .head_dim = 2,
                       .dtype = Dtype::kFloat64});
  init_weights(attention, 1, 0.5);
  const auto documents = Documents::one(3);
  const SequenceContext context = {
      .documents = documents,
      .rope = ops::rope_table(documents.positions(), 2, 1e4, Dtype::kFloat64)};
  const Tensor x = randn({3, 4});
  const Tensor y = attention(x, context).detach();
  attention.replace("o_proj", TensorModule(std::make_shared<Sequential>(
                                  attention.part<Tensor(const Tensor&)>("o_proj").get<Linear>(),
                                  std::make_unique<Doubled>())));
  EXPECT_TRUE(bitwise_equal(attention(x, context).detach(), y * 2.0));
}

class FirstExperts final : public Callable<FirstExperts> {
 public:
  Tensor forward(const Tensor& rows, const Tensor& /*weights*/, const ops::RowGroups& /*groups*/) {
    return rows;
  }
};

TEST(Replace, AMixtureTakesOtherExperts) {
  MoE moe({.hidden_size = 4,
           .intermediate_size = 3,
           .num_experts = 4,
           .top_k = 2,
           .dtype = Dtype::kFloat64});
  init_weights(moe, 1, 0.5);
  const AnyModule<Tensor(const Tensor&, const Tensor&, const ops::RowGroups&)> experts =
      std::make_shared<FirstExperts>();
  moe.replace("experts", experts);
  EXPECT_THAT(names_of(moe), ElementsAre("gate.weight"));
  const Tensor x = randn({3, 4});
  EXPECT_TRUE(bitwise_equal(moe(x).hidden.detach(), x * 2.0));  // top_k copies
}

TEST(Replace, AReplacedPartRunsItsHooksAndIsRecomputed) {
  MLP mlp = make_mlp();
  init_weights(mlp, 1, 0.5);
  auto doubled = std::make_shared<Doubled>();
  int calls = 0;
  doubled->register_forward_hook([&](Module&) { ++calls; });
  mlp.replace("down_proj", TensorModule(doubled));
  recompute(mlp);
  mlp(randn({3, 4})).backward(randn({3, 6}, 2));
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(mlp.named_modules().back().first, "down_proj");
}

TEST(Replace, RejectsWhatDoesNotFitAndChangesNothing) {
  MoE moe({.hidden_size = 4,
           .intermediate_size = 3,
           .num_experts = 4,
           .top_k = 2,
           .dtype = Dtype::kFloat64});
  const TensorModule doubled = std::make_shared<Doubled>();
  EXPECT_EQ(message_of<ValueError>([&] { moe.replace("router", doubled); }),
            "replace: the module must have a module 'router', got none");
  EXPECT_EQ(message_of<ValueError>([&] { moe.replace("experts.0", doubled); }),
            "replace: the module must have a module 'experts.0', got none");
  EXPECT_EQ(message_of<ValueError>([&] { moe.replace("combine", doubled); }),
            "replace: 'combine' must be registered as replaceable, got a fixed member of its "
            "module");
  EXPECT_EQ(message_of<ValueError>([&] { moe.replace("experts", doubled); }),
            "replace: 'experts' must be given the signature that it was registered with, got "
            "another");
  EXPECT_EQ(message_of<ValueError>([&] { moe.part<Tensor(const Tensor&)>("gate"); }),
            "part: 'gate' must be given the signature that it was registered with, got another");
  MLP mlp = make_mlp();
  EXPECT_EQ(message_of<ValueError>([&] { mlp.replace("up_proj", TensorModule()); }),
            "AnyModule: must have a module, got an empty one");
  mlp.replace("up_proj", doubled);
  EXPECT_EQ(message_of<ValueError>([&] { mlp.replace("gate_proj", doubled); }),
            "register_module: 'gate_proj' of the module is registered as 'up_proj' already; "
            "register a module once and call it as often as you like, or make another one of "
            "the same weight, as nn::Linear(weight) and nn::Embedding(weight) do");
  EXPECT_THAT(names_of(mlp), ElementsAre("gate_proj.weight", "down_proj.weight"));
}

}  // namespace
}  // namespace moegrad::nn::replace_test
