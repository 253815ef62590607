// SPDX-License-Identifier: Apache-2.0
// The path of a module's call: its name within the tree of modules, whoever calls it.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "framework/autograd/dropout_ids.h"
#include "framework/autograd/scope.h"
#include "framework/distributed/launch.h"
#include "framework/runtime/grad_mode.h"
#include "framework/runtime/rank_context.h"
#include "framework/tensor/fill.h"
#include "nn/dropout.h"
#include "nn/linear.h"
#include "nn/mlp.h"
#include "nn/module_list.h"
#include "nn/sequential.h"
#include "tests/testing.h"

namespace moegrad::nn::module_path_test {
namespace {

using namespace test;

using Paths = std::vector<std::string>;

/// Notes the path of each call.
class Leaf final : public Callable<Leaf> {
 public:
  explicit Leaf(Paths& paths) : paths_(paths) {}
  Tensor forward(const Tensor& x) {
    paths_.push_back(ScopeGuard::current()->path());
    return x;
  }

 private:
  Paths& paths_;
};

class Block final : public Callable<Block> {
 public:
  explicit Block(Paths& paths) : leaf_(paths) { register_module("leaf", leaf_); }
  Tensor forward(const Tensor& x) { return leaf_(x); }
  Leaf& leaf() { return leaf_; }

 private:
  Leaf leaf_;
};

class Model final : public Callable<Model> {
 public:
  explicit Model(Paths& paths) {
    register_module("first", first_);
    register_module("second", second_);
    register_module("nested", nested_);
    for (int i = 0; i < 2; ++i) first_.push_back(std::make_unique<Block>(paths));
    second_.push_back(std::make_unique<Block>(paths));
    auto inner = std::make_unique<ModuleList<Leaf>>();
    inner->push_back(std::make_unique<Leaf>(paths));
    nested_.push_back(std::move(inner));
  }
  Tensor forward(const Tensor& x) {
    Tensor y = x;
    for (auto& block : first_) y = block(y);
    y = second_[0](y);
    y = nested_[0][0](y);
    return first_[1].leaf()(y);  // without its block
  }
  Block& block() { return first_[1]; }

 private:
  ModuleList<Block> first_, second_;
  ModuleList<ModuleList<Leaf>> nested_;
};

const Paths kOwn = {"first.0.leaf", "first.1.leaf", "second.0.leaf", "nested.0.0", "first.1.leaf"};

TEST(ModulePath, IsTheNameInTheTreeThroughListsAndWhoeverCalls) {
  Paths paths;
  Model model(paths);
  model(Tensor::ones({1}));
  EXPECT_EQ(paths, kOwn);
  paths.clear();
  model.block()(Tensor::ones({1}));
  EXPECT_EQ(paths, Paths({"first.1.leaf"}));
}

/// Calls a module that is not registered with it, or one of another tree.
class Caller final : public Callable<Caller> {
 public:
  explicit Caller(std::function<Tensor(const Tensor&)> calls) : calls_(std::move(calls)) {}
  Tensor forward(const Tensor& x) { return calls_(x); }

 private:
  std::function<Tensor(const Tensor&)> calls_;
};

TEST(ModulePath, OfAnotherTreeBeginsWithTheCaller) {
  Paths paths;
  Model model(paths);
  Sequential net;
  net.emplace_back<Caller>([&](const Tensor& x) { return model(x); });
  net(Tensor::ones({1}));
  Paths expected = kOwn;
  for (auto& path : expected) path = "0." + path;
  EXPECT_EQ(paths, expected);
  paths.clear();
  Sequential inner;  // a tree, whose element calls the first one's element
  inner.emplace_back<Caller>([&](const Tensor& x) { return model.block()(x); });
  Sequential outer;
  outer.emplace_back<Caller>([&](const Tensor& x) { return inner(x); });
  outer(Tensor::ones({1}));
  EXPECT_EQ(paths, Paths({"0.0.first.1.leaf"}));
}

TEST(ModulePath, OfAChildOfAnotherModuleOfTheTreeIsTheChildsOwn) {
  Paths paths;
  const auto shared = std::make_shared<Block>(paths);
  Sequential net;
  net.push_back(shared);
  net.emplace_back<Caller>([&](const Tensor& x) { return (*shared)(x); });
  net(Tensor::ones({1}));
  EXPECT_EQ(paths, Paths({"0.leaf", "0.leaf"}));
}

// The last tree to register a module is not always the one that calls it.
TEST(ModulePath, IsThatOfTheCallersTreeAlsoIfAnotherHasTheModuleToo) {
  Paths paths;
  const auto first = std::make_shared<Block>(paths), second = std::make_shared<Block>(paths);
  Sequential net;
  net.push_back(first);
  net.push_back(second);
  {
    Sequential other;
    other.emplace_back<Caller>([](const Tensor& x) { return x; });
    other.push_back(second);
    other.push_back(first);
    net(Tensor::ones({1}));
    other(Tensor::ones({1}));
  }
  net(Tensor::ones({1}));        // the last parent of its elements no longer lives
  (*second)(Tensor::ones({1}));  // whose tree is net's again
  EXPECT_EQ(paths, Paths({"0.leaf", "1.leaf", "1.leaf", "2.leaf", "0.leaf", "1.leaf", "1.leaf"}));
}

TEST(ModulePath, FollowsATreeThatGrowsAndFallsApart) {
  Paths paths;
  const Tensor x = Tensor::ones({1});
  const auto same = [](const Tensor& y) { return y; };
  const auto block = std::make_shared<Block>(paths);
  (*block)(x);
  {
    const auto above = std::make_shared<Sequential>();
    above->push_back(block);
    (*block)(x);
    {
      Sequential top;
      top.emplace_back<Caller>(same);
      top.push_back(above);
      top(x);
      (*block)(x);
    }
    (*above)(x);
  }
  (*block)(x);
  Sequential other;
  other.emplace_back<Caller>(same);
  other.push_back(block);
  other(x);
  EXPECT_EQ(paths, Paths({"leaf", "0.leaf", "1.0.leaf", "1.0.leaf", "0.leaf", "leaf", "1.leaf"}));
}

TEST(ModulePath, OfAPartIsAnotherOneWithinItsReplacement) {
  Paths paths;
  MLP mlp({.hidden_size = 4, .intermediate_size = 4});
  const auto leaf = std::make_shared<Leaf>(paths);
  mlp.replace("up_proj", TensorModule(leaf));
  mlp(Tensor::ones({1, 4}));
  const auto adapter = std::make_shared<Sequential>();
  adapter->push_back(leaf);
  mlp.replace("up_proj", TensorModule(adapter));
  mlp(Tensor::ones({1, 4}));
  mlp.replace(
      "up_proj",
      TensorModule(std::make_shared<Linear>(Linear::Config{.in_features = 4, .out_features = 4})));
  (*leaf)(Tensor::ones({1}));
  EXPECT_EQ(paths, Paths({"up_proj", "up_proj.0", "0"}));
}

/// Notes the path of each call, by rank.
class SharedLeaf final : public Callable<SharedLeaf> {
 public:
  explicit SharedLeaf(std::vector<Paths>& paths) : paths_(paths) {}
  Tensor forward(const Tensor& x) {
    const auto rank = static_cast<std::size_t>(RankContext::current().rank());
    paths_[rank].push_back(ScopeGuard::current()->path());
    return x;
  }

 private:
  std::vector<Paths>& paths_;
};

TEST(ModulePath, IsTheSameForAllRanksThatEvaluateOneModule) {
  constexpr int kRanks = 4, kCalls = 20;
  std::vector<Paths> paths(kRanks);
  Sequential model(std::make_unique<Sequential>(std::make_unique<SharedLeaf>(paths)));
  launch(kRanks, [&](RankContext&) {
    const NoGradGuard no_grad;
    for (int i = 0; i < kCalls; ++i) model(Tensor::ones({1}));
  });
  EXPECT_EQ(paths, std::vector<Paths>(kRanks, Paths(kCalls, "0.0")));
}

/// Dropouts in lists, called by the module that has the lists.
class Dropping final : public Callable<Dropping> {
 public:
  Dropping() {
    register_module("attentions", attentions_);
    register_module("mlps", mlps_);
    attentions_.emplace_back({.p = 0.5});
    mlps_.emplace_back({.p = 0.5});
    mlps_.emplace_back({.p = 0.5});
  }
  std::vector<Tensor> forward(const Tensor& x) {
    return {attentions_[0](x), mlps_[0](x), mlps_[1](x)};
  }

 private:
  ModuleList<Dropout> attentions_, mlps_;
};

TEST(ModulePath, ElementsOfTwoListsDropOtherElements) {
  const DropoutIdsGuard guard({.seed = 1, .step = 0});
  Dropping model;
  const auto y = model(Tensor::ones({16, 8}));
  EXPECT_FALSE(bitwise_equal(y[0], y[1]));
  EXPECT_FALSE(bitwise_equal(y[1], y[2]));
  EXPECT_FALSE(bitwise_equal(y[0], y[2]));
}

constexpr auto* kNotRegistered =
    "Dropout: masks depend on the module's path, so it must be registered with the module that "
    "calls it (register_module); in module ";

TEST(ModulePath, DropoutBelowAModuleThatItsCallerHasNotRegisteredIsAnError) {
  const DropoutIdsGuard guard({.seed = 1, .step = 0});
  Sequential first, second;
  first.emplace_back<Dropout>(Dropout::Config{.p = 0.5});
  second.emplace_back<Dropout>(Dropout::Config{.p = 0.5});
  Caller careless([&](const Tensor& x) { return second(first(x)); });
  EXPECT_EQ(message_of<Error>([&] {
              careless(Tensor::ones({4, 4}));
            }),
            std::string(kNotRegistered) + "0");
  EXPECT_NO_THROW(second(first(Tensor::ones({4, 4}))));
  ModuleList<Sequential> list;
  list.push_back(std::make_unique<Sequential>(std::make_unique<Dropout>(Dropout::Config{})));
  Caller forgets([&](const Tensor& x) { return list[0](x); });  // to register its list
  EXPECT_EQ(message_of<Error>([&] {
              forgets(Tensor::ones({4, 4}));
            }),
            std::string(kNotRegistered) + "0.0");
  EXPECT_NO_THROW(list[0](Tensor::ones({4, 4})));
}

TEST(ModulePath, DropoutOfModulesThatTwoTreesHaveGoesOnInEither) {
  const DropoutIdsGuard guard({.seed = 1, .step = 0});
  const Tensor x = Tensor::ones({4, 4});
  const auto shared = std::make_shared<Dropout>(Dropout::Config{.p = 0.5});
  Sequential net;
  net.push_back(shared);
  const Tensor alone = net(x);
  {
    Sequential other;
    other.emplace_back<Dropout>(Dropout::Config{.p = 0.5});
    other.push_back(shared);
    EXPECT_TRUE(bitwise_equal(net(x), alone));
    EXPECT_NO_THROW(other(x));
  }
  EXPECT_TRUE(bitwise_equal(net(x), alone));
}

}  // namespace
}  // namespace moegrad::nn::module_path_test
