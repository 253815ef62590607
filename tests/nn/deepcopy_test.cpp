// SPDX-License-Identifier: Apache-2.0
#include "nn/deepcopy.h"

#include <memory>
#include <utility>

#include "framework/runtime/grad_mode.h"
#include "framework/tensor/meta.h"
#include "nn/embedding.h"
#include "nn/init.h"
#include "nn/linear.h"
#include "nn/rms_norm.h"
#include "nn/sequential.h"
#include "ops/elementwise.h"
#include "tests/framework/distributed/hand_shards.h"
#include "tests/testing.h"

namespace moegrad::nn::deepcopy_test {
namespace {

using namespace test;

/// An embedding and a head that may share their weight, with two buffers.
class Tied final : public Callable<Tied> {
 public:
  struct Config {
    std::int64_t size = 3;
    bool tied = true;
  };
  explicit Tied(const Config& config)
      : embedding({.num_embeddings = config.size, .embedding_dim = 2}),
        head(config.tied ? embedding.weight() : Tensor::zeros({config.size, 2})) {
    register_module("embedding", embedding);
    register_module("head", head);
    register_buffer("mean", mean);
    register_buffer("scratch", scratch, /*persistent=*/false);
  }
  Tensor forward(const Tensor& ids) { return head(embedding(ids)); }
  Embedding embedding;
  Linear head;
  Tensor mean = Tensor::zeros({2}), scratch = Tensor::zeros({1});
};

TEST(Deepcopy, HasTheSameValuesInTensorsOfItsOwn) {
  Tied model({.size = 4});
  init_weights(model, 1, 0.5);
  {
    const NoGradGuard no_grad;
    fill_(model.mean, 2.0);
    fill_(model.scratch, 3.0);
  }
  model(Tensor::arange(4)).backward(Tensor::ones({4, 4}));
  model.head.eval();
  model.head.compute_in(Dtype::kBFloat16);
  int calls = 0;
  model.register_forward_hook([&](Module&) { ++calls; });

  const auto copy = deepcopy(model, {.size = 4});
  EXPECT_TRUE(bitwise_equal(copy->embedding.weight().detach(), model.embedding.weight().detach()));
  EXPECT_TRUE(copy->head.weight().is(copy->embedding.weight()));
  EXPECT_TRUE(bitwise_equal(copy->mean, Tensor::full({2}, 2.0)));
  EXPECT_TRUE(bitwise_equal(copy->scratch, Tensor::full({1}, 3.0)));  // not persistent
  EXPECT_FALSE(copy->embedding.weight().grad().defined());
  EXPECT_TRUE(copy->is_training());
  EXPECT_FALSE(copy->head.is_training());
  EXPECT_EQ(copy->head.compute_dtype(), Dtype::kBFloat16);
  EXPECT_FALSE(copy->embedding.compute_dtype().has_value());
  (*copy)(Tensor::arange(4));
  EXPECT_EQ(calls, 0);  // hooks are not copied

  const NoGradGuard no_grad;
  Tensor own = copy->embedding.weight();
  fill_(own, 7.0);
  EXPECT_NE(model.embedding.weight().data<float>()[0], 7.0F);
}

TEST(Deepcopy, KeepsWhatIsFrozenAndTheDtype) {
  const auto make = [] {
    auto net = std::make_unique<Sequential>();
    net->emplace_back<Linear>({.in_features = 2, .out_features = 3, .bias = true});
    net->emplace_back<RMSNorm>({.dim = 3});
    return net;
  };
  const auto net = make();
  init_weights(*net, 1, 0.5);
  net->to(Dtype::kFloat64);
  net->named_parameters()[1].tensor.set_requires_grad(false);
  const auto copy = make();
  deepcopy_into(*copy, *net);
  const auto of = net->named_parameters(), own = copy->named_parameters();
  for (std::size_t i = 0; i < of.size(); ++i) {
    EXPECT_TRUE(bitwise_equal(own[i].tensor.detach(), of[i].tensor.detach())) << of[i].name;
    EXPECT_EQ(own[i].tensor.requires_grad(), i != 1);
  }
}

TEST(Deepcopy, RefusesAnotherModuleAndChangesNothing) {
  Tied model({.size = 4});
  init_weights(model, 1, 0.5);
  Tied untied({.size = 4, .tied = false}), small({.size = 3});
  EXPECT_EQ(
      message_of<ValueError>([&] { deepcopy_into(untied, model); }),
      "deepcopy: 'head.weight' must be tied to the same tensor in the copy, got 'head.weight' "
      "and 'embedding.weight'");
  EXPECT_EQ(message_of<ShapeError>([&] { deepcopy_into(small, model); }),
            "deepcopy: 'embedding.weight' of the copy must be [4, 2], got [3, 2]");
  Sequential two, one;
  two.emplace_back<Linear>({.in_features = 2, .out_features = 2});
  two.emplace_back<Linear>({.in_features = 2, .out_features = 2, .bias = true});
  init_weights(two, 1, 0.5);
  one.emplace_back<Linear>({.in_features = 2, .out_features = 2});
  EXPECT_EQ(message_of<ValueError>([&] { deepcopy_into(one, two); }),
            "deepcopy: the copy must consist of the same modules, got another at '1'");
  EXPECT_EQ(message_of<ValueError>([&] { deepcopy_into(one, model); }),
            "deepcopy: the copy must consist of the same modules, got another at the root");
  one.emplace_back<Linear>({.in_features = 2, .out_features = 2});
  EXPECT_EQ(message_of<ValueError>([&] { deepcopy_into(one, two); }),
            "deepcopy: the copy must have the same tensors, got another at '1.bias'");
  const Module* const copies[] = {&untied, &small, &one};
  for (const Module* copy : copies) {
    for (const auto& [name, tensor] : copy->named_parameters()) {
      EXPECT_TRUE(bitwise_equal(tensor.detach(), Tensor::zeros(tensor.shape()))) << name;
    }
  }
}

// As of a module that is made from a tensor, which it then holds.
TEST(Deepcopy, RefusesACopyThatHoldsTensorsOfTheOriginal) {
  Linear model({.in_features = 2, .out_features = 3});
  init_weights(model, 1, 0.5);
  model(Tensor::ones({1, 2})).backward(Tensor::ones({1, 3}));
  EXPECT_EQ(
      message_of<ValueError>([&] { deepcopy(model, model.weight()); }),
      "deepcopy: 'weight' of the copy must have elements of its own, got those of 'weight' of "
      "the original");
  EXPECT_TRUE(model.weight().grad().defined());
}

TEST(Deepcopy, RefusesShardsAndTensorsWithoutBytes) {
  const Linear::Config config = {.in_features = 2, .out_features = 3};
  Linear sharded(config);
  sharded.weight().set_shard_spec(
      std::make_shared<const ShardSpec>(test::range_spec({6, 2}, 0, 3)));
  EXPECT_EQ(message_of<Error>([&] { deepcopy(sharded, config); }),
            "deepcopy: 'weight' of the original must be of one rank, got [0, 3) of dimension 0 of "
            "[6, 2] on several; copy the module before parallelize_module, expert_parallel or "
            "fully_shard divides it");
  const MetaGuard meta;
  Linear empty(config);
  EXPECT_EQ(message_of<Error>([&] { deepcopy(empty, config); }),
            "deepcopy: 'weight' of the original must have bytes, got a tensor on the meta device; "
            "call to_empty()");
}

}  // namespace
}  // namespace moegrad::nn::deepcopy_test
