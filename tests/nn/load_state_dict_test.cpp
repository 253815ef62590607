// SPDX-License-Identifier: Apache-2.0
#include "nn/linear.h"
#include "nn/module.h"
#include "tests/testing.h"

namespace moegrad::nn::load_state_dict_test {
namespace {

using testing::bitwise_equal;
using testing::message_of;

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
  const Tensor given = testing::randn({3, 2}, 1, Dtype::kFloat32);
  EXPECT_EQ(message_of<Error>([&] {
              module.load_state_dict({{"first.weight", given}});
            }),
            "load_state_dict: missing key 'second.weight'");
  EXPECT_EQ(message_of<ShapeError>([&] {
              module.load_state_dict({{"first.weight", given}, {"second.weight", given}});
            }),
            "load_state_dict: 'second.weight' must be [2, 3], got [3, 2]");
  EXPECT_TRUE(bitwise_equal(module.first.weight().detach(), Tensor::ones({3, 2})));
}

}  // namespace
}  // namespace moegrad::nn::load_state_dict_test
