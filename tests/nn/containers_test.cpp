// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "nn/init.h"
#include "nn/linear.h"
#include "nn/module_list.h"
#include "nn/recompute.h"
#include "nn/rms_norm.h"
#include "nn/sequential.h"
#include "ops/elementwise.h"
#include "tests/nn/small_modules.h"
#include "tests/testing.h"

namespace moegrad::nn::containers_test {
namespace {

using namespace test;
using ::testing::ElementsAre;

std::unique_ptr<Sequential> make_net() {
  auto net = std::make_unique<Sequential>();
  net->emplace_back<Linear>(
      {.in_features = 4, .out_features = 6, .bias = true, .dtype = Dtype::kFloat64});
  net->emplace_back<Tanh>();
  net->emplace_back<Linear>({.in_features = 6, .out_features = 2, .dtype = Dtype::kFloat64});
  init_weights(*net, 1, 0.5);
  return net;
}

TEST(Sequential, CallsItsModulesInOrder) {
  const auto net = make_net();
  EXPECT_THAT(names_of(net->named_parameters()), ElementsAre("0.weight", "0.bias", "2.weight"));
  EXPECT_EQ(net->size(), 3);
  auto& first = dynamic_cast<Linear&>((*net)[0]);
  auto& last = dynamic_cast<Linear&>((*net)[2]);
  const Tensor x = randn({3, 4});
  EXPECT_TRUE(bitwise_equal((*net)(x).detach(), last(ops::tanh(first(x))).detach()));
}

TEST(Sequential, IsMadeOfPointersToModules) {
  const Linear::Config config = {.in_features = 4, .out_features = 4};
  auto shared = std::make_shared<Linear>(config);
  Sequential net(std::make_unique<Linear>(config), shared, std::make_unique<Tanh>());
  EXPECT_EQ(net.size(), 3);
  EXPECT_EQ(&net[1], shared.get());
  net.push_back(std::make_unique<Tanh>());
  EXPECT_EQ(net.size(), 4);
  EXPECT_THAT(names_of(net.named_parameters()), ElementsAre("0.weight", "1.weight"));
}

TEST(Sequential, ItsModulesStayAtTheirAddresses) {
  Sequential net;
  auto& first = net.emplace_back<Linear>({.in_features = 2, .out_features = 2});
  for (int i = 0; i < 100; ++i) net.emplace_back<RMSNorm>({.dim = 2});
  EXPECT_EQ(&net[0], &first);
  EXPECT_EQ(net.named_parameters().size(), 101U);
  EXPECT_EQ(net.named_parameters().back().name, "100.weight");
}

TEST(Sequential, RejectsWhatIsNotThere) {
  Sequential net;
  EXPECT_EQ(message_of<ValueError>([&] { net(randn({2})); }),
            "Sequential: must have a module to call, got none");
  EXPECT_EQ(message_of<ValueError>([&] { net[0]; }), "Sequential: index must be in [0, 0), got 0");
  net.emplace_back<Tanh>();
  EXPECT_EQ(message_of<ValueError>([&] { net[1]; }), "Sequential: index must be in [0, 1), got 1");
  EXPECT_EQ(message_of<ValueError>([&] { net[-1]; }),
            "Sequential: index must be in [0, 1), got -1");
  EXPECT_EQ(message_of<ValueError>([&] { net.push_back(std::shared_ptr<Tanh>()); }),
            "AnyModule: must be given a module, got null");
  EXPECT_EQ(message_of<ValueError>([&] { net.push_back(TensorModule()); }),
            "AnyModule: must have a module, got an empty one");
  auto tanh = std::make_shared<Tanh>();
  net.push_back(tanh);
  EXPECT_EQ(message_of<ValueError>([&] { net.push_back(tanh); }),
            "register_module: '2' of the module is registered as '1' already; register a module "
            "once and call it as often as you like, or make another one of "
            "the same weight, as nn::Linear(weight) and nn::Embedding(weight) do");
  EXPECT_EQ(net.size(), 2);
  EXPECT_EQ(net(randn({2})).numel(), 2);
}

TEST(Sequential, RunsHooksAndModesOfItsModules) {
  const auto net = make_net();
  std::vector<std::string> events;
  for (const auto& [path, module] : net->named_modules()) {
    module->register_forward_pre_hook(
        [&events, path = path](Module&) { events.push_back("[" + path + "]"); });
  }
  (*net)(randn({3, 4}));
  EXPECT_THAT(events, ElementsAre("[]", "[0]", "[1]", "[2]"));
  net->eval();
  for (const auto& [path, module] : net->named_modules()) EXPECT_FALSE(module->is_training());
  net->train();
  EXPECT_TRUE((*net)[1].is_training());
}

TEST(Sequential, IsRecomputedWithTheSameBits) {
  const auto gradients = [](bool recomputed) {
    const auto net = make_net();
    if (recomputed) recompute(*net);
    (*net)(randn({3, 4})).backward(randn({3, 2}, 2));
    TensorList grads;
    for (const auto& [name, parameter] : net->named_parameters()) grads.push_back(parameter.grad());
    return grads;
  };
  const auto plain = gradients(false), again = gradients(true);
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(bitwise_equal(plain[i], again[i]));
}

TEST(Sequential, AnotherLoadsItsState) {
  const auto net = make_net(), other = make_net();
  init_weights(*net, 2, 0.5);
  other->load_state_dict(net->state_dict());
  const Tensor x = randn({3, 4});
  EXPECT_TRUE(bitwise_equal((*net)(x).detach(), (*other)(x).detach()));
}

/// A stack of layers that are called by hand.
class Stack final : public Callable<Stack> {
 public:
  explicit Stack(int depth) {
    for (int i = 0; i < depth; ++i) {
      layers.emplace_back({.in_features = 3, .out_features = 3, .dtype = Dtype::kFloat64});
    }
    register_module("layers", layers);
  }
  Tensor forward(const Tensor& x) {
    Tensor y = x;
    for (auto& layer : layers) y = ops::tanh(layer(y));
    return y;
  }
  ModuleList<Linear> layers;
};

TEST(ModuleList, NamesItsModulesByIndex) {
  Stack stack(3);
  EXPECT_THAT(names_of(stack.named_parameters()),
              ElementsAre("layers.0.weight", "layers.1.weight", "layers.2.weight"));
  EXPECT_EQ(stack.layers.size(), 3);
  init_weights(stack, 1, 0.5);
  const Tensor x = randn({2, 3});
  Tensor y = x;
  for (std::int64_t i = 0; i < 3; ++i) y = ops::tanh(stack.layers[i](y));
  EXPECT_TRUE(bitwise_equal(stack(x).detach(), y.detach()));
  stack.eval();
  EXPECT_FALSE(stack.layers[2].is_training());
}

TEST(ModuleList, GrowsAfterItWasRegisteredAndModulesStay) {
  Stack stack(1);
  auto* const first = &stack.layers[0];
  for (int i = 0; i < 50; ++i) {
    stack.layers.push_back(std::make_unique<Linear>(
        Linear::Config{.in_features = 3, .out_features = 3, .dtype = Dtype::kFloat64}));
  }
  EXPECT_EQ(&stack.layers[0], first);
  EXPECT_EQ(stack.named_parameters().back().name, "layers.50.weight");
}

TEST(ModuleList, OfABaseClassHoldsModulesOfAnyType) {
  ModuleList<Module> list;
  list.push_back(std::make_unique<Tanh>());
  list.push_back(std::make_unique<RMSNorm>(RMSNorm::Config{.dim = 2}));
  EXPECT_THAT(names_of(list.named_parameters()), ElementsAre("1.weight"));
  std::vector<Module*> seen;
  for (auto& module : list) seen.push_back(&module);
  EXPECT_THAT(seen, ElementsAre(&list[0], &list[1]));
}

TEST(ModuleList, RejectsWhatIsNotThereAndIsNeverCalled) {
  ModuleList<Linear> list;
  EXPECT_EQ(message_of<ValueError>([&] { list[0]; }), "ModuleList: index must be in [0, 0), got 0");
  EXPECT_EQ(message_of<ValueError>([&] { list.push_back(nullptr); }),
            "ModuleList: must be given a module, got null");
  auto linear = std::make_shared<Linear>(Linear::Config{.in_features = 1, .out_features = 1});
  list.push_back(linear);
  EXPECT_EQ(message_of<ValueError>([&] { list.push_back(linear); }),
            "register_module: '1' of the module is registered as '0' already; register a module "
            "once and call it as often as you like, or make another one of "
            "the same weight, as nn::Linear(weight) and nn::Embedding(weight) do");
  EXPECT_EQ(list.size(), 1);
  EXPECT_EQ(message_of<ValueError>([&] { list[1]; }), "ModuleList: index must be in [0, 1), got 1");
  EXPECT_EQ(message_of<ValueError>([&] { recompute(list); }),
            "attach: the module must be called for an extension to do something, but a list is "
            "not; attach it to each element");
}

}  // namespace
}  // namespace moegrad::nn::containers_test
