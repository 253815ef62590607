// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "framework/runtime/grad_mode.h"
#include "nn/init.h"
#include "nn/linear.h"
#include "nn/module.h"
#include "tests/framework/distributed/hand_shards.h"
#include "tests/testing.h"

namespace moegrad::nn::load_state_dict_test {
namespace {

using namespace test;

class Pair final : public Module {
 public:
  Pair()
      : first({.in_features = 2, .out_features = 3}),
        second({.in_features = 3, .out_features = 2}) {
    register_module("first", first);
    register_module("second", second);
  }
  Linear first, second;
};

TEST(LoadStateDict, ARefusedStateLeavesTheModuleAsItWas) {
  Pair module;
  for (auto& [name, tensor] : module.state_dict()) {
    Tensor own = tensor;
    fill_(own, 1.0);
  }
  const Tensor given = test::randn({3, 2}, 1, Dtype::kFloat32);
  EXPECT_EQ(message_of<Error>([&] {
              module.load_state_dict({{"first.weight", given}});
            }),
            "load_state_dict: missing key 'second.weight'");
  EXPECT_EQ(message_of<ShapeError>([&] {
              module.load_state_dict({{"first.weight", given}, {"second.weight", given}});
            }),
            "load_state_dict: 'second.weight' must be [2, 3], got [3, 2]");
  const Tensor fits = test::randn({2, 3}, 2, Dtype::kFloat32);
  EXPECT_EQ(message_of<Error>([&] {
              module.load_state_dict(
                  {{"first.weight", given}, {"second.weight", fits}, {"first.weight", given}});
            }),
            "load_state_dict: key 'first.weight' is given twice");
  EXPECT_TRUE(bitwise_equal(module.first.weight().detach(), Tensor::ones({3, 2})));
}

TEST(LoadStateDict, OneErrorListsAllThatIsWrong) {
  Pair module;
  const Tensor given = test::randn({2, 2}, 1, Dtype::kFloat32);
  EXPECT_EQ(message_of<Error>([&] {
              module.load_state_dict({{"third.weight", given}, {"fourth.weight", given}});
            }),
            "load_state_dict: missing keys 'first.weight', 'second.weight'; unexpected keys "
            "'third.weight', 'fourth.weight'");
  EXPECT_EQ(message_of<Error>([&] {
              module.load_state_dict({{"second.weight", given}, {"third.weight", given}});
            }),
            "load_state_dict: 'second.weight' must be [2, 3], got [2, 2]; missing key "
            "'first.weight'; unexpected key 'third.weight'");
  EXPECT_EQ(message_of<ShapeError>([&] {
              module.load_state_dict({{"first.weight", given}, {"second.weight", given}});
            }),
            "load_state_dict: 'first.weight' must be [3, 2], got [2, 2]; 'second.weight' must be "
            "[2, 3], got [2, 2]");
}

TEST(LoadStateDict, NotStrictPassesOverNamesAlone) {
  Pair module;
  const Tensor given = test::randn({3, 2}, 1, Dtype::kFloat32);
  const auto keys =
      module.load_state_dict({{"third.weight", given}, {"first.weight", given}}, /*strict=*/false);
  EXPECT_EQ(keys.missing_keys, std::vector<std::string>{"second.weight"});
  EXPECT_EQ(keys.unexpected_keys, std::vector<std::string>{"third.weight"});
  EXPECT_TRUE(bitwise_equal(module.first.weight().detach(), given));
  EXPECT_TRUE(bitwise_equal(module.second.weight().detach(), Tensor::zeros({2, 3})));
  // As in torch, shapes must agree.
  EXPECT_EQ(message_of<ShapeError>([&] {
              module.load_state_dict({{"second.weight", given}}, /*strict=*/false);
            }),
            "load_state_dict: 'second.weight' must be [2, 3], got [3, 2]");
  const auto all = module.load_state_dict(module.state_dict());
  EXPECT_TRUE(all.missing_keys.empty() && all.unexpected_keys.empty());
}

// As averages of several states are.
TEST(LoadStateDict, TakesResultsOnTheTape) {
  Pair module;
  const Tensor given = Tensor::full({3, 2}, 2.0);
  const auto leaf = Tensor::full({2, 3}, 3.0).set_requires_grad(true);
  module.load_state_dict({{"first.weight", given}, {"second.weight", leaf.slice(0, 0, 2)}});
  EXPECT_TRUE(bitwise_equal(module.first.weight().detach(), given));
  EXPECT_TRUE(bitwise_equal(module.second.weight().detach(), leaf.detach()));
}

// Parameters of an even size have shards of one shape on all ranks.
TEST(LoadStateDict, RefusesAnotherRanksShards) {
  Pair own, other;
  const auto mark = [](Pair& pair, std::int64_t begin) {
    auto spec = test::range_spec({6, 2}, begin, begin + 3);
    pair.first.weight().set_shard_spec(std::make_shared<const ShardSpec>(std::move(spec)));
  };
  mark(own, 0);
  mark(other, 3);
  EXPECT_EQ(
      message_of<ValueError>([&] { own.load_state_dict(other.state_dict()); }),
      "load_state_dict: 'first.weight' must be [0, 3) of dimension 0 of [6, 2], got [3, 6) of "
      "dimension 0 of [6, 2]");
  mark(other, 0);
  own.load_state_dict(other.state_dict());
}

// A file of whole tensors does not say that its tensors are those of one rank.
TEST(LoadStateDict, TakesATensorWithoutAShardSpecForAWholeOne) {
  Pair own, whole;
  init_weights(whole, 1, 0.5);
  const auto expect_loaded = [&] {
    EXPECT_TRUE(bitwise_equal(own.first.weight().detach(), whole.first.weight().detach()));
    const NoGradGuard no_grad;
    Tensor weight = own.first.weight();
    fill_(weight, 0.0);
  };
  auto spec = std::make_shared<const ShardSpec>(test::range_spec({6, 2}, 0, 3));
  own.first.weight().set_shard_spec(spec);
  EXPECT_EQ(message_of<ValueError>([&] { own.load_state_dict(whole.state_dict()); }),
            "load_state_dict: 'first.weight' must be [0, 3) of dimension 0 of [6, 2], got all of "
            "[3, 2]");
  EXPECT_EQ(message_of<ValueError>([&] { whole.load_state_dict(own.state_dict()); }),
            "load_state_dict: 'first.weight' must be all of [3, 2], got [0, 3) of dimension 0 of "
            "[6, 2]");
  // A copy of a shard is a shard; where a tensor has no ShardSpec, it can be given one.
  auto state = whole.state_dict();
  for (auto& [name, tensor] : state) tensor = clone(tensor);
  state[0].tensor.set_shard_spec(spec);
  own.load_state_dict(state);
  expect_loaded();
  for (auto& [name, tensor] : state) tensor = clone(tensor);
  own.load_state_dict(state);
  expect_loaded();
}

TEST(LoadStateDict, NamesATensorThatHasBeenReplacedByAStridedOne) {
  struct Slots final : Module {
    Slots() {
      register_parameter("a", a);
      register_parameter("w", w);
    }
    Tensor a = Tensor::ones({2}), w = Tensor::ones({2, 2});
  } module;
  const auto state = [&] {
    return NamedTensors{{"a", Tensor::zeros({2})}, {"w", Tensor::zeros({2, 2})}};
  };
  module.w = Tensor::as_strided(Tensor::ones({2, 2}), {2, 2}, {1, 2}, 0);
  EXPECT_EQ(message_of<LayoutError>([&] { module.load_state_dict(state()); }),
            "load_state_dict: 'w' of this module must be contiguous, got shape [2, 2] with strides "
            "[1, 2]");
  EXPECT_TRUE(bitwise_equal(module.a.detach(), Tensor::ones({2})));
  module.w = Tensor::ones({2, 2});
  EXPECT_EQ(message_of<UndefinedTensorError>([&] {
              module.load_state_dict({{"a", Tensor::zeros({2})}, {"w", Tensor()}});
            }),
            "load_state_dict: 'w' must be a defined tensor");
  EXPECT_TRUE(bitwise_equal(module.a.detach(), Tensor::ones({2})));
}

TEST(LoadStateDict, ConvertsRealsAlone) {
  struct Buffers final : Module {
    Buffers() {
      register_buffer("reals", reals);
      register_buffer("counts", counts);
      register_buffer("mask", mask);
    }
    Tensor reals = Tensor::ones({2}), counts = Tensor::arange(2),
           mask = Tensor::zeros({2}, Dtype::kBool);
  } module;
  const Tensor reals = Tensor::full({2}, 1e30, Dtype::kFloat64), counts = Tensor::arange(2);
  const auto load = [&](const Tensor& a, const Tensor& b, const Tensor& c) {
    module.load_state_dict({{"reals", a}, {"counts", b}, {"mask", c}});
  };
  const Tensor mask = module.mask;
  EXPECT_EQ(message_of<DtypeError>([&] { load(reals, reals, mask); }),
            "load_state_dict: 'counts' must be int64, or of other reals if it is of reals, got "
            "float64");
  EXPECT_THROW(load(reals, counts, reals), DtypeError);
  EXPECT_THROW(load(mask, counts, mask), DtypeError);
  EXPECT_EQ(module.reals.data<float>()[0], 1);
  load(reals, counts, mask);
  EXPECT_EQ(module.reals.data<float>()[0], 1e30F);
}

}  // namespace
}  // namespace moegrad::nn::load_state_dict_test
