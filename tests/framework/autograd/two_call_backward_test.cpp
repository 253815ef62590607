// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "framework/autograd/checkpoint.h"
#include "framework/autograd/engine.h"
#include "framework/autograd/scope.h"
#include "tests/framework/autograd/test_functions.h"
#include "tests/testing.h"

namespace moegrad::two_call_backward_test {
namespace {

using namespace test;

/// a * b, which notes each call of its backward and what it was asked for.
class NotedMul final : public Function {
 public:
  explicit NotedMul(std::vector<std::string>& calls) : calls_(calls) {}
  std::string_view name() const override { return "noted_mul"; }
  Tensor forward(const Tensor& a, const Tensor& b) {
    a_ = a;
    b_ = b;
    return test::zip(a, b, std::multiplies<>());
  }
  TensorList backward(const TensorList& grads, InputMask needs) override {
    calls_.push_back(std::string(needs[0] ? "a" : "-") + (needs[1] ? "b" : "-"));
    return {needs[0] ? test::zip(grads[0], b_.unpack(), std::multiplies<>()) : Tensor(),
            needs[1] ? test::zip(grads[0], a_.unpack(), std::multiplies<>()) : Tensor()};
  }

 private:
  std::vector<std::string>& calls_;
  SavedTensor a_{*this}, b_{*this};
};

/// x used twice; w three times, once behind a Function of its own; v in a branch without x.
struct Network {
  Tensor x = variable({5}, 1), w = variable({5}, 2), v = variable({5}, 3);
  std::vector<std::string> calls;

  Tensor noted(const Tensor& a, const Tensor& b) { return apply<NotedMul>(made_with(calls), a, b); }
  Tensor stage(const Tensor& input) {
    const Tensor scaled_weight = mul(w, v);
    Tensor h = noted(input, w);
    h = noted(add(h, input), scaled_weight);
    return add(add(noted(h, w), mul(v, v)), mul(scaled_weight, scaled_weight));
  }
};

void expect_same_gradients(const Network& one, const Network& two) {
  EXPECT_TRUE(bitwise_equal(one.x.grad(), two.x.grad()));
  EXPECT_TRUE(bitwise_equal(one.w.grad(), two.w.grad()));
  EXPECT_TRUE(bitwise_equal(one.v.grad(), two.v.grad()));
}

TEST(TwoCallBackward, GivesTheBitsOfOneCall) {
  const Tensor cotangent = randn({5}, 9);
  Network one, two;
  one.stage(one.x).backward(cotangent);
  auto weights = backward_to_inputs({two.stage(two.x)}, {cotangent}, {two.x});
  EXPECT_TRUE(bitwise_equal(one.x.grad(), two.x.grad()));
  EXPECT_FALSE(two.w.grad().defined() || two.v.grad().defined());
  weights.run();
  expect_same_gradients(one, two);
}

TEST(TwoCallBackward, ComputesNoProductTwice) {
  Network network;
  auto weights = backward_to_inputs({network.stage(network.x)}, {randn({5}, 9)}, {network.x});
  EXPECT_EQ(network.calls, (std::vector<std::string>{"a-", "a-", "a-"}));
  weights.run();
  EXPECT_EQ(network.calls, (std::vector<std::string>{"a-", "a-", "a-", "-b", "-b", "-b"}));
}

TEST(TwoCallBackward, AccumulatesOverMicroBatchesAsOneCallDoes) {
  const Tensor cotangent = randn({5}, 9);
  Network one, two;
  for (int i = 0; i < 3; ++i) one.stage(one.x).backward(cotangent);
  // The weights of each micro-batch wait for the input of the next.
  std::vector<WeightBackward> waiting;
  for (int i = 0; i < 3; ++i) {
    waiting.push_back(backward_to_inputs({two.stage(two.x)}, {cotangent}, {two.x}));
  }
  for (auto& weights : waiting) weights.run();
  expect_same_gradients(one, two);
}

TEST(TwoCallBackward, ARecomputationHappensInTheFirstCall) {
  const Tensor cotangent = randn({5}, 9);
  Network one, two;
  const auto recomputed = [](Network& network) {
    const Tensor h = network.stage(network.x);
    const Tensor aside = mul(network.v, network.v);
    return checkpoint(
        [&network](const TensorList& in) -> TensorList {
          return {add(network.stage(in[0]), mul(in[1], network.w))};
        },
        {h, aside})[0];
  };
  recomputed(one).backward(cotangent);
  two.calls.clear();
  const Tensor root = recomputed(two);
  auto weights = backward_to_inputs({root}, {cotangent}, {two.x});
  EXPECT_TRUE(bitwise_equal(one.x.grad(), two.x.grad()));
  EXPECT_FALSE(two.w.grad().defined() || two.v.grad().defined());
  EXPECT_EQ(two.calls.size(), 6);
  weights.run();
  EXPECT_EQ(two.calls.size(), 12);
  expect_same_gradients(one, two);
}

TEST(TwoCallBackward, ACheckpointThatNoInputReachesWaits) {
  Network one, two;
  const auto loss = [](Network& network) {
    const Tensor aside = checkpoint(
        [&network](const TensorList& in) -> TensorList { return {mul(in[0], network.w)}; },
        {network.v})[0];
    return add(mul(network.x, network.x), aside);
  };
  const Tensor cotangent = randn({5}, 9);
  loss(one).backward(cotangent);
  auto weights = backward_to_inputs({loss(two)}, {cotangent}, {two.x});
  EXPECT_FALSE(two.w.grad().defined() || two.v.grad().defined());
  weights.run();
  expect_same_gradients(one, two);
}

TEST(TwoCallBackward, RootsThatLeadToNoInputWait) {
  const Tensor x = variable({2}, 1), w = variable({2}, 2), leaf = variable({2}, 3);
  const Tensor cotangent = randn({2}, 4);
  auto weights =
      backward_to_inputs({mul(w, w), leaf, mul(x, x)}, {cotangent, cotangent, cotangent}, {x});
  EXPECT_TRUE(x.grad().defined());
  EXPECT_FALSE(w.grad().defined() || leaf.grad().defined());
  weights.run();
  EXPECT_TRUE(bitwise_equal(leaf.grad(), cotangent));
  EXPECT_TRUE(bitwise_equal(
      w.grad(), test::zip(mul(w, cotangent), mul(w, cotangent), std::plus<>()).detach()));
}

TEST(TwoCallBackward, HooksRunOnceAndWithTheCallThatCompletesThem) {
  Network network;
  std::vector<std::string> events;
  const auto note = [&](const std::string& what) {
    return [&events, what](const Tensor& /*grad*/) {
      events.push_back(what);
      return Tensor();
    };
  };
  network.x.register_hook(note("x"));
  network.w.register_hook(note("w"));
  network.w.register_post_accumulate_grad_hook([&](const Tensor&) { events.push_back("w done"); });
  const Tensor root = network.stage(network.x);
  root.register_hook(note("root"));
  auto weights = backward_to_inputs({root}, {randn({5}, 9)}, {network.x});
  EXPECT_EQ(events, (std::vector<std::string>{"root", "x"}));
  weights.run();
  EXPECT_EQ(events, (std::vector<std::string>{"root", "x", "w", "w done"}));
}

TEST(TwoCallBackward, HooksOfACapturedLeafRunOnceAndWithTheCallThatCompletesThem) {
  Tensor expected;
  for (const bool of_input : {false, true}) {
    Network network;
    std::vector<std::string> events;
    network.w.register_hook([&](const Tensor& grad) {
      events.push_back("w");
      return mul(grad, grad);
    });
    network.w.register_post_accumulate_grad_hook(
        [&](const Tensor&) { events.push_back("w done"); });
    const auto recomputed = [&](const Tensor& x) {
      return checkpoint(
          [&network](const TensorList& in) -> TensorList { return {network.stage(in[0])}; },
          {x})[0];
    };
    const Tensor root = recomputed(recomputed(network.x));
    const std::vector<std::string> both = {"w", "w done"};
    auto weights = backward_to_inputs({root}, {randn({5}, 9)}, {of_input ? network.w : network.x});
    EXPECT_EQ(events, of_input ? both : std::vector<std::string>());
    weights.run();
    EXPECT_EQ(events, both);
    if (!of_input) expected = network.w.grad();
    EXPECT_TRUE(bitwise_equal(network.w.grad(), expected));
  }
}

TEST(TwoCallBackward, BothCallsEnterTheScopesOnTheirWay) {
  Network network;
  std::vector<std::string> events;
  const Tensor y = [&] {
    const ScopeGuard scope(
        "stage", [&] { events.push_back("enter"); }, [&] { events.push_back("exit"); });
    return network.stage(network.x);
  }();
  auto weights = backward_to_inputs({y}, {randn({5}, 9)}, {network.x});
  EXPECT_EQ(events, (std::vector<std::string>{"enter", "exit"}));
  weights.run();
  EXPECT_EQ(events, (std::vector<std::string>{"enter", "exit", "enter", "exit"}));
}

TEST(TwoCallBackward, FreesWhatWasSavedWhenItsLastCallIsDone) {
  const Tensor x = variable({5}, 1), w = variable({5}, 2);
  const Tensor product = mul(x, w);
  const Tensor y = mul(product, product);
  auto weights = backward_to_inputs({y}, {randn({5}, 9)}, {x});
  EXPECT_EQ(y.grad_fn()->saved_bytes(), 0);  // nothing left to do
  EXPECT_GT(product.grad_fn()->saved_bytes(), 0);
  weights.run();
  EXPECT_EQ(product.grad_fn()->saved_bytes(), 0);
}

TEST(TwoCallBackward, RetainGraphAllowsAnotherBackward) {
  Network one, two;
  const Tensor cotangent = randn({5}, 9);
  const Tensor y = one.stage(one.x), z = two.stage(two.x);
  y.backward(cotangent, /*retain_graph=*/true);
  y.backward(cotangent);
  backward_to_inputs({z}, {cotangent}, {two.x}, /*retain_graph=*/true).run();
  backward_to_inputs({z}, {cotangent}, {two.x}).run();
  expect_same_gradients(one, two);
}

TEST(TwoCallBackward, DroppingTheSecondCallDropsItsGradients) {
  Network network;
  { backward_to_inputs({network.stage(network.x)}, {randn({5}, 9)}, {network.x}); }
  EXPECT_TRUE(network.x.grad().defined());
  EXPECT_FALSE(network.w.grad().defined());
}

TEST(TwoCallBackward, RefusesWhatIsNoLeafAndASecondRun) {
  Network network;
  const Tensor y = network.stage(network.x);
  EXPECT_EQ(message_of<Error>([&] {
              backward_to_inputs({y}, {randn({5})}, {network.x, y});
            }),
            "backward_to_inputs: input 1 must be a leaf that requires a gradient");
  auto weights = backward_to_inputs({y}, {randn({5})}, {network.x});
  weights.run();
  EXPECT_EQ(message_of<Error>([&] { weights.run(); }), "WeightBackward: has run already");
}

}  // namespace
}  // namespace moegrad::two_call_backward_test
