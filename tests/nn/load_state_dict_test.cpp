// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <utility>

#include "nn/linear.h"
#include "nn/module.h"
#include "tests/framework/distributed/hand_shards.h"
#include "tests/testing.h"

namespace moegrad::nn::load_state_dict_test {
namespace {

using test::bitwise_equal;
using test::message_of;

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

}  // namespace
}  // namespace moegrad::nn::load_state_dict_test
