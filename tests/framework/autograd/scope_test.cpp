// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/scope.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/framework/autograd/test_functions.h"
#include "tests/testing.h"

namespace moegrad::scope_test {
namespace {

using namespace test;

using Events = std::vector<std::string>;

class Scopes : public ::testing::Test {
 protected:
  ScopeGuard open(const std::string& name) {
    return ScopeGuard(
        name, [this, name] { events_.push_back("enter " + name); },
        [this, name] { events_.push_back("exit " + name); });
  }
  Tensor op(const Tensor& x, const std::string& name) {
    return probe(x, name, [this, name](const Tensor& grad) {
      events_.push_back(name);
      return TensorList{grad};
    });
  }
  static Tensor ones() { return Tensor::ones({2}, Dtype::kFloat64); }

  Events events_;
};

TEST_F(Scopes, FunctionsRememberTheInnermostOpenScope) {
  EXPECT_EQ(ScopeGuard::current(), nullptr);
  const Tensor x = variable({2});
  Tensor inside, between;
  {
    const auto outer = open("model");
    {
      const auto inner = open("model.mlp");
      inside = mul(x, x);
    }
    between = mul(x, x);
  }
  EXPECT_EQ(inside.grad_fn()->scope()->path(), "model.mlp");
  EXPECT_EQ(inside.grad_fn()->scope()->parent->path(), "model");
  EXPECT_EQ(between.grad_fn()->scope()->path(), "model");
  EXPECT_EQ(mul(x, x).grad_fn()->scope(), nullptr);
}

TEST_F(Scopes, BackwardEntersOutermostFirstAndLeavesInnermostFirst) {
  Tensor h = variable({2});
  {
    const auto model = open("model");
    h = op(h, "embed");
    for (const std::string layer : {"a", "b"}) {
      const auto scope = open(layer);
      const auto mlp = open(layer + ".mlp");
      h = op(h, layer + ".op");
    }
    h = op(h, "head");
  }
  op(h, "loss").backward(ones());
  EXPECT_EQ(events_, (Events{"loss", "enter model", "head", "enter b", "enter b.mlp", "b.op",
                             "exit b.mlp", "exit b", "enter a", "enter a.mlp", "a.op", "exit a.mlp",
                             "exit a", "embed", "exit model"}));
}

TEST_F(Scopes, ADirectJumpIntoANestedScopeEntersItsParentsFirst) {
  Tensor h = variable({2});
  {
    const auto a = open("a");
    const auto b = open("b");
    const auto c = open("c");
    h = op(h, "op");
  }
  h.backward(ones());
  EXPECT_EQ(events_, (Events{"enter a", "enter b", "enter c", "op", "exit c", "exit b", "exit a"}));
}

TEST_F(Scopes, DoNotDependOnWhetherTheirInputsNeedAGradient) {
  const Tensor weight = variable({2}), x = randn({2}, 2);
  Tensor h;
  {
    const auto layer = open("layer");
    h = mul(x, op(weight, "weight"));
    h = mul(h, h);
  }
  h.backward(ones());
  EXPECT_EQ(events_, (Events{"enter layer", "weight", "exit layer"}));
}

TEST_F(Scopes, ThatNoGradientReachesAreNeverEntered) {
  const Tensor x = variable({2});
  Tensor used, unused;
  {
    const auto scope = open("unused");
    unused = op(x, "unused op");
  }
  { const auto scope = open("no functions"); }
  {
    const auto scope = open("no gradients");
    mul(randn({2}), randn({2}));
  }
  used = op(x, "used");
  used.backward(ones());
  EXPECT_EQ(events_, Events{"used"});
}

TEST_F(Scopes, LeaveOnlyAfterAllThatIsReachableInsideHasRun) {
  // Two ways into the layer: the second output is consumed before the first one.
  const Tensor x = variable({4});
  TensorList parts;
  {
    const auto layer = open("layer");
    parts = halves(mul(x, x));
    parts[0] = op(parts[0], "first");
    parts[1] = op(parts[1], "second");
  }
  Tensor late = op(parts[1], "late");
  add(op(parts[0], "early"), late).backward(ones());
  EXPECT_EQ(events_, (Events{"early", "late", "enter layer", "second", "first", "exit layer"}));
}

TEST_F(Scopes, EveryBackwardEntersThemAgain) {
  Tensor h = variable({2});
  {
    const auto layer = open("layer");
    h = op(h, "op");
  }
  h.backward(ones(), /*retain_graph=*/true);
  h.backward(ones());
  EXPECT_EQ(events_,
            (Events{"enter layer", "op", "exit layer", "enter layer", "op", "exit layer"}));
}

TEST_F(Scopes, EveryCallOfAModuleIsAScopeOfItsOwn) {
  Tensor h = variable({2});
  for (int i = 0; i < 2; ++i) {
    const auto shared = open("shared");
    h = op(h, "op");
  }
  h.backward(ones());
  EXPECT_EQ(events_,
            (Events{"enter shared", "op", "exit shared", "enter shared", "op", "exit shared"}));
}

TEST_F(Scopes, ActionsAreOptional) {
  Tensor h = variable({2});
  {
    const ScopeGuard layer("layer", nullptr, nullptr);
    h = op(h, "op");
  }
  h.backward(ones());
  EXPECT_EQ(events_, Events{"op"});
}

TEST_F(Scopes, RestoreGuardComesBackToTheScopeBefore) {
  const Tensor x = variable({2});
  Tensor h;
  {
    const auto layer = open("layer");
    h = op(x, "op");
  }
  const auto elsewhere = open("elsewhere");
  {
    const ScopeRestoreGuard again(h.grad_fn()->scope());
    EXPECT_EQ(ScopeGuard::current()->path(), "layer");
    const auto inner = open("inner");
    EXPECT_EQ(ScopeGuard::current()->parent->path(), "layer");
    const ScopeRestoreGuard none(nullptr);
    EXPECT_EQ(ScopeGuard::current(), nullptr);
  }
  EXPECT_EQ(ScopeGuard::current()->path(), "elsewhere");
}

}  // namespace
}  // namespace moegrad::scope_test
