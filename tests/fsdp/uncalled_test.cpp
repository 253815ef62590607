// SPDX-License-Identifier: Apache-2.0
// forward() instead of a call, on a sharded module: refused by name (Note [Shards are no
// operands]).
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <string>

#include "framework/distributed/collectives.h"
#include "framework/distributed/launch.h"
#include "framework/distributed/to_local.h"
#include "framework/io/print.h"
#include "framework/runtime/error.h"
#include "framework/tensor/fill.h"
#include "framework/tensor/meta.h"
#include "fsdp/fully_shard.h"
#include "nn/embedding.h"
#include "nn/init.h"
#include "nn/linear.h"
#include "nn/rms_norm.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "optim/adamw.h"
#include "optim/clip_grad_norm.h"
#include "tests/framework/autograd/test_functions.h"
#include "tests/testing.h"

namespace moegrad::fsdp::uncalled_test {
namespace {

using namespace test;

std::string refusal(const std::string& what, const std::string& shard) {
  return what + " must be a whole parameter, got a shard " + shard +
         " on 2 ranks; call the module, module(x), which gathers it: forward(x) alone does not; "
         "to_local(shard) gives this rank's elements alone";
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

TEST(Uncalled, AFunctionOfOnesOwnTakesNoShard) {
  launch(2, [](RankContext& rank) {
    nn::RMSNorm module({.dim = 8});
    fully_shard(module, DeviceMesh::flat(rank.group()));
    const Tensor shard = module.named_parameters()[0].tensor;
    EXPECT_EQ(message_of<Error>([&] { test::mul(Tensor::ones({4}), shard); }),
              refusal("mul: input 1", "[4] of [8]"));
  });
}

// An own norm, or a log, of what a rank holds of a gradient differs from rank to rank.
TEST(Uncalled, WhatBelongsToAShardIsRefusedAsTheShardIs) {
  launch(2, [](RankContext& rank) {
    nn::Linear module({.in_features = 2, .out_features = 4});
    nn::init_weights(module, 3, 0.5);
    fully_shard(module, DeviceMesh::flat(rank.group()));
    optim::AdamW optimizer(module.named_parameters(), {});
    ops::sum(ops::square(module(Tensor::ones({3, 2})))).backward();
    const Tensor parameter = module.named_parameters()[0].tensor;
    const NamedTensors shards = {{"grad", parameter.grad()},
                                 {"detached", parameter.detach()},
                                 {"clone", clone(parameter.grad())},
                                 {"converted", to_dtype(parameter.detach(), Dtype::kFloat64)},
                                 {"state", module.state_dict()[0].tensor},
                                 {"optimizer's state", optimizer.state_dict()[1].tensor}};
    for (const auto& [name, shard] : shards) {
      EXPECT_EQ(message_of<Error>([&shard = shard] { ops::square(shard); }),
                refusal("square: input 0", "[2, 2] of [4, 2]"))
          << name;
      EXPECT_EQ(message_of<Error>([&shard = shard] { shard.slice(0, 1); }),
                refusal("slice: input 0", "[2, 2] of [4, 2]"))
          << name;
      EXPECT_NE(::testing::PrintToString(shard).find("shard="), std::string::npos) << name;
      EXPECT_EQ(ops::square(to_local(shard)).shape(), (Shape{2, 2})) << name;
    }
    // The norm of the ranks' own elements, added up, is that of the whole.
    const double own = ops::sum(ops::square(to_local(parameter.grad()))).item();
    const double norm = optim::clip_grad_norm(module.named_parameters(), 1e9);
    EXPECT_NEAR(std::sqrt(all_reduce(*rank.group(), own)), norm, 1e-5 * norm);
  });
}

// to_local() shares elements and version: what is written there is written to the shard.
TEST(Uncalled, ALocalTensorIsTheShardsElements) {
  launch(2, [](RankContext& rank) {
    nn::RMSNorm module({.dim = 8});
    fully_shard(module, DeviceMesh::flat(rank.group()));
    const Tensor shard = module.named_parameters()[0].tensor;
    Tensor local = to_local(shard);
    EXPECT_EQ(local.shard_spec(), nullptr);
    EXPECT_FALSE(local.requires_grad());
    fill_(local, 3.0);
    EXPECT_NEAR(ops::sum(module(Tensor::ones({1, 8}))).item(), 24, 1e-3);
  });
}

TEST(Uncalled, OnOneRankAGradientIsOrdinary) {
  launch(1, [](RankContext& rank) {
    nn::RMSNorm module({.dim = 8});
    fully_shard(module, DeviceMesh::flat(rank.group()));
    ops::sum(module(Tensor::ones({1, 8}))).backward();
    const Tensor parameter = module.named_parameters()[0].tensor;
    EXPECT_NO_THROW(ops::sum(ops::square(parameter.grad())));
    EXPECT_NO_THROW(ops::sum(ops::square(parameter.detach())));
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
