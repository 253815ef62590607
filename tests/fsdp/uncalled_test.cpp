// SPDX-License-Identifier: Apache-2.0
// forward() instead of a call, on a sharded module: refused by name (Note [Shards are no
// operands]).
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "framework/distributed/launch.h"
#include "framework/runtime/error.h"
#include "framework/tensor/meta.h"
#include "fsdp/fully_shard.h"
#include "nn/embedding.h"
#include "nn/init.h"
#include "nn/linear.h"
#include "nn/rms_norm.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "tests/framework/autograd/test_functions.h"
#include "tests/testing.h"

namespace moegrad::fsdp::uncalled_test {
namespace {

using test::bitwise_equal;
using test::message_of;

std::string refusal(const std::string& what, const std::string& shard) {
  return what + " must be a whole parameter, got a shard " + shard +
         " on 2 ranks; call the module, module(x), which gathers it: forward(x) alone does not";
}

template <class M, class Input>
void expect_refused(const typename M::Config& config, const Input& input,
                    const std::string& expected) {
  launch(2, [&](RankContext& rank) {
    M module(config);
    fully_shard(module, DeviceMesh::flat(rank.group()));
    EXPECT_EQ(message_of<Error>([&] { module.forward(input); }), expected);
    EXPECT_NO_THROW(module(input));
  });
}

TEST(Uncalled, ForwardOfAShardedLayerIsRefused) {
  // Its shape would fit: the result would be half as wide.
  expect_refused<nn::Linear>({.in_features = 4, .out_features = 6}, Tensor::ones({1, 4}),
                             refusal("linear: input 1", "[3, 4] of [6, 4]"));
  // Its shape would not, and the shape is not what is wrong.
  expect_refused<nn::RMSNorm>({.dim = 8}, Tensor::ones({1, 8}),
                              refusal("rms_norm: input 1", "[4] of [8]"));
  expect_refused<nn::Embedding>({.num_embeddings = 6, .embedding_dim = 2},
                                Tensor::zeros({3}, Dtype::kInt64),
                                refusal("embedding: input 1", "[3, 2] of [6, 2]"));
}

/// A layer below another module.
class Outer final : public nn::Callable<Outer> {
 public:
  Outer() { register_module("inner", inner_); }
  Tensor forward(const Tensor& x) { return inner_(x); }

 private:
  nn::Linear inner_{{.in_features = 4, .out_features = 6}};
};

// A child that is called gathers nothing either: it belongs to the group of the module above.
TEST(Uncalled, TheChildThatWasCalledIsNamed) {
  launch(2, [](RankContext& rank) {
    Outer module;
    fully_shard(module, DeviceMesh::flat(rank.group()));
    EXPECT_EQ(message_of<Error>([&] {
                module.forward(Tensor::ones({1, 4}));
              }),
              refusal("linear: input 1", "[3, 4] of [6, 4]") + "; in module inner");
    EXPECT_NO_THROW(module(Tensor::ones({1, 4})));
  });
}

TEST(Uncalled, AFunctionOfOnesOwnTakesNoShardAndADetachedOneIsOrdinary) {
  launch(2, [](RankContext& rank) {
    nn::RMSNorm module({.dim = 8});
    fully_shard(module, DeviceMesh::flat(rank.group()));
    const Tensor shard = module.named_parameters()[0].tensor;
    EXPECT_EQ(message_of<Error>([&] { test::mul(Tensor::ones({4}), shard); }),
              refusal("mul: input 1", "[4] of [8]"));
    EXPECT_EQ(ops::sum(shard.detach()).item(), 4);
  });
}

TEST(Uncalled, OnOneRankForwardIsOrdinary) {
  launch(1, [](RankContext& rank) {
    nn::Linear module({.in_features = 4, .out_features = 6});
    fully_shard(module, DeviceMesh::flat(rank.group()));
    EXPECT_NO_THROW(module(Tensor::ones({1, 4})));
  });
}

/// A layer with a bias and a scale of its own.
class Affine final : public nn::Callable<Affine> {
 public:
  Affine() {
    register_parameter("scale", scale_, nn::InitialValues::ones());
    register_parameter("bias", bias_, nn::InitialValues::zeros());
    register_parameter("weight", weight_, nn::InitialValues::normal(0.5));
  }
  Tensor forward(const Tensor& x) { return ops::add(ops::mul(x, scale_), bias_); }

 private:
  Tensor scale_ = Tensor::full({6}, 7.0), bias_ = Tensor::full({6}, 7.0),
         weight_ = Tensor::full({6, 3}, 7.0);
};

// Made on the meta device, sharded, given bytes and initialised: the same weights at any world
// size.
TEST(Uncalled, DeclaredInitialValuesAreTheSameAtAnyWorldSize) {
  Affine whole;
  nn::init_weights(whole, 3, 0.02);
  for (const int world_size : {1, 2, 3, 4}) {
    launch(world_size, [&](RankContext& rank) {
      std::optional<Affine> module;
      {
        const MetaGuard meta;
        module.emplace();
      }
      auto& state = fully_shard(*module, DeviceMesh::flat(rank.group()));
      module->to_empty();
      nn::init_weights(*module, 3, 0.02);
      state.unshard();
      const auto expected = whole.parameter_slots(), slots = module->parameter_slots();
      for (std::size_t i = 0; i < slots.size(); ++i) {
        EXPECT_TRUE(bitwise_equal(slots[i].tensor->detach(), expected[i].tensor->detach()))
            << slots[i].name << " on " << world_size;
      }
      state.reshard();
    });
  }
}

}  // namespace
}  // namespace moegrad::fsdp::uncalled_test
