// SPDX-License-Identifier: Apache-2.0

// Optimizers that hold the whole parameters that fully_shard has replaced by shards.

#include <gtest/gtest.h>

#include <memory>

#include "framework/tensor/meta.h"
#include "nn/init.h"
#include "tests/fsdp/two_blocks.h"

namespace moegrad::fsdp::replaced_parameters_test {
namespace {

using namespace two_block_net;
using namespace test;

const char* const kReplaced =
    ": 'scale' must be a parameter of its module, got the whole tensor that fully_shard or "
    "expert_parallel has replaced by a part; take named_parameters() afterwards";

TEST(ReplacedParameters, AnOptimizerMadeBeforeFullyShardFailsAtItsFirstStep) {
  for (const int world : {1, 2}) {
    launch(world, [](RankContext& rank) {
      RealNet net(two_blocks());
      const NamedTensors old = {{"scale", *net.parameter_slots()[0].tensor}};
      optim::SGD optimizer(old, {.lr = 0.1});
      shard(net, rank);
      loss_of(net).backward();
      EXPECT_EQ(message_of<Error>([&] { optimizer.step(); }), std::string("step") + kReplaced);
      EXPECT_EQ(message_of<Error>([&] { optim::clip_grad_norm(old, 1.0); }),
                std::string("clip_grad_norm") + kReplaced);
    });
  }
}

TEST(ReplacedParameters, AnOptimizerMadeBeforeFullyShardOnTheMetaDeviceFailsToo) {
  launch(2, [](RankContext& rank) {
    std::unique_ptr<nn::Linear> layer;
    {
      const MetaGuard meta;
      layer = std::make_unique<nn::Linear>(
          nn::Linear::Config{.in_features = 4, .out_features = 4, .dtype = Dtype::kFloat64});
    }
    const NamedTensors old = {{"scale", layer->weight()}};
    optim::SGD optimizer(old, {.lr = 0.1});
    fully_shard(*layer, DeviceMesh::flat(rank.group()));
    layer->to_empty();
    nn::init_weights(*layer, 1, 0.1);
    optim::SGD current(layer->named_parameters(), {.lr = 0.05});
    ops::sum((*layer)(test::randn({2, 4}))).backward();
    EXPECT_EQ(message_of<Error>([&] { optimizer.step(); }), std::string("step") + kReplaced);
    current.step();
  });
}

TEST(ReplacedParameters, ATiedParameterIsReplacedWhereverItWas) {
  launch(2, [](RankContext& rank) {
    Tensor weight = test::randn({4, 4});
    test::RealBlock first(weight), second(weight);
    const NamedTensors old = {{"scale", *second.parameter_slots()[0].tensor}};
    optim::SGD optimizer(old, {.lr = 0.1});
    fully_shard({&first, &second}, DeviceMesh::flat(rank.group()));
    EXPECT_EQ(message_of<Error>([&] { optimizer.step(); }), std::string("step") + kReplaced);
  });
}

}  // namespace
}  // namespace moegrad::fsdp::replaced_parameters_test
