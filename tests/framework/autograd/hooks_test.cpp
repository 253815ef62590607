// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "framework/tensor/hook_list.h"
#include "tests/framework/autograd/test_functions.h"
#include "tests/testing.h"

namespace moegrad::hooks_test {
namespace {

using namespace test;

Tensor filled(double value) { return Tensor::full({2}, value, Dtype::kFloat64); }

TEST(HookList, RunsInOrderAndForgetsRemovedHooks) {
  HookList<void(int)> list;
  std::vector<int> seen;
  EXPECT_TRUE(list.empty());
  auto first = list.add([&](int x) { seen.push_back(x); });
  list.add([&](int x) { seen.push_back(10 * x); });
  for (const auto& hook : list.snapshot()) hook(1);
  first.remove();
  first.remove();
  for (const auto& hook : list.snapshot()) hook(2);
  EXPECT_EQ(seen, (std::vector<int>{1, 10, 20}));
}

TEST(HookList, HandlesMayOutliveIt) {
  HookHandle handle;
  handle.remove();
  {
    HookList<void()> list;
    handle = list.add([] {});
  }
  handle.remove();
}

TEST(HookList, AHookMayRemoveItselfWhileItRuns) {
  HookList<void()> list;
  int calls = 0;
  HookHandle handle = list.add([&] {
    ++calls;
    handle.remove();
  });
  for (int i = 0; i < 2; ++i) {
    for (const auto& hook : list.snapshot()) hook();
  }
  EXPECT_EQ(calls, 1);
}

TEST(TensorHook, SeesTheCompleteGradientOfAResultAndMayReplaceIt) {
  const Tensor x = variable({2});
  const Tensor h = add(x, x);
  std::vector<double> seen;
  h.register_hook([&](const Tensor& grad) {
    seen.push_back(grad.data<double>()[0]);
    return filled(10);
  });
  h.register_hook([&](const Tensor& grad) {
    seen.push_back(grad.data<double>()[0]);
    return Tensor();
  });
  add(h, add(h, h)).backward(filled(1));
  EXPECT_EQ(seen, (std::vector<double>{3, 10}));
  EXPECT_TRUE(bitwise_equal(x.grad(), filled(20)));
}

TEST(TensorHook, SeesTheCompleteGradientOfALeafOncePerBackward) {
  const Tensor x = variable({2});
  std::vector<double> seen;
  auto handle = x.register_hook([&](const Tensor& grad) {
    seen.push_back(grad.data<double>()[0]);
    return filled(7);
  });
  const Tensor y = add(add(x, x), x);
  y.backward(filled(1), /*retain_graph=*/true);
  EXPECT_TRUE(bitwise_equal(x.grad(), filled(7)));
  y.backward(filled(1), /*retain_graph=*/true);
  EXPECT_TRUE(bitwise_equal(x.grad(), filled(14)));
  EXPECT_EQ(seen, (std::vector<double>{3, 3}));
  handle.remove();
  y.backward(filled(1));
  EXPECT_TRUE(bitwise_equal(x.grad(), filled(17)));
}

TEST(TensorHook, MayReturnNothingWhenItOnlyLooks) {
  const Tensor x = variable({2});
  const Tensor h = add(x, x);
  double of_result = 0, of_leaf = 0;
  h.register_hook([&](const Tensor& grad) { of_result = grad.data<double>()[0]; });
  const std::function<void(const Tensor&)> look = [&](const Tensor& grad) {
    of_leaf = grad.data<double>()[0];
  };
  auto handle = x.register_hook(look);
  h.backward(filled(1), /*retain_graph=*/true);
  EXPECT_EQ(of_result, 1);
  EXPECT_EQ(of_leaf, 2);
  EXPECT_TRUE(bitwise_equal(x.grad(), filled(2)));
  handle.remove();
  of_leaf = 0;
  h.backward(filled(1));
  EXPECT_EQ(of_leaf, 0);
}

TEST(TensorHook, IsPerOutput) {
  const Tensor x = variable({4});
  const auto parts = test::halves(x);
  std::vector<std::string> seen;
  parts[0].register_hook([&](const Tensor&) { return seen.push_back("0"), Tensor(); });
  parts[1].register_hook([&](const Tensor&) { return seen.push_back("1"), Tensor(); });
  parts[1].backward(filled(1));
  EXPECT_EQ(seen, std::vector<std::string>{"1"});
}

TEST(TensorHook, IsNamedWhenItsGradientHasTheWrongShapeOrType) {
  Tensor x = variable({2});
  const Tensor h = mul(x, x);
  auto handle = h.register_hook([](const Tensor&) { return Tensor::ones({3}, Dtype::kFloat64); });
  EXPECT_EQ(message_of<ShapeError>([&] { h.backward(filled(1), true); }),
            "mul: a hook's gradient of output 0 must be [2], got [3]");
  handle.remove();
  x.storage().set_name("embed.weight");
  x.register_hook([](const Tensor&) { return Tensor::ones({2}); });
  EXPECT_EQ(message_of<DtypeError>([&] { h.backward(filled(1)); }),
            "backward: a hook's gradient of leaf 'embed.weight' must be float64, got float32");
}

TEST(PostAccumulateHook, RunsOncePerBackwardAfterTheLastContribution) {
  const Tensor x = variable({2});
  std::vector<double> seen;
  auto handle = x.register_post_accumulate_grad_hook([&](const Tensor& leaf) {
    EXPECT_TRUE(leaf.is(x));
    const Tensor grad = leaf.grad();
    seen.push_back(grad.data<double>()[0]);
  });
  const Tensor h = add(x, x);
  add(h, add(x, h)).backward(filled(1), /*retain_graph=*/true);
  EXPECT_EQ(seen, std::vector<double>{5});
  h.backward(filled(1), /*retain_graph=*/true);
  EXPECT_EQ(seen, (std::vector<double>{5, 7}));
  handle.remove();
  h.backward(filled(1));
  EXPECT_EQ(seen.size(), 2U);
}

TEST(PostAccumulateHook, MayTakeTheGradientAway) {
  const Tensor x = variable({2});
  std::vector<double> taken;
  x.register_post_accumulate_grad_hook([&](const Tensor& leaf) {
    const Tensor grad = leaf.grad();
    taken.push_back(grad.data<double>()[1]);
    leaf.set_grad(Tensor());
  });
  for (int i = 0; i < 2; ++i) add(x, x).backward(filled(1));
  EXPECT_EQ(taken, (std::vector<double>{2, 2}));
  EXPECT_FALSE(x.grad().defined());
}

TEST(PostAccumulateHook, ComesAsSoonAsTheLeafIsComplete) {
  const Tensor early = variable({2}), late = variable({2}, 2);
  std::vector<std::string> events;
  late.register_post_accumulate_grad_hook([&](const Tensor&) { events.push_back("late"); });
  const Tensor h = test::probe(early, "early", [&](const Tensor& grad) {
    events.push_back("early");
    return TensorList{grad};
  });
  mul(h, late).backward(filled(1));
  EXPECT_EQ(events, (std::vector<std::string>{"late", "early"}));
}

}  // namespace
}  // namespace moegrad::hooks_test
