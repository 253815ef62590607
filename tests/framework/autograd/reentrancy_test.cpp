// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "framework/autograd/engine.h"
#include "tests/framework/autograd/test_functions.h"
#include "tests/testing.h"

namespace moegrad::reentrancy_test {
namespace {

using namespace test;

Tensor ones(const Shape& shape) { return Tensor::ones(shape, Dtype::kFloat64); }

TEST(Reentrancy, ABackwardMayRunInsideABackward) {
  const Tensor x = variable({2}), inner = variable({2}, 5);
  std::vector<std::string> events;
  const Tensor h = probe(x, "outer", [&](const Tensor& grad) {
    const Tensor y = [&] {
      const GradModeGuard on(true);
      return probe(inner, "inner", [&](const Tensor& g) {
        events.push_back("inner");
        return TensorList{g};
      });
    }();
    queue_backward_callback([&] { events.push_back("callback 1"); });
    y.backward(ones({2}));
    events.push_back("outer");
    return TensorList{grad};
  });
  probe(h, "first", [&](const Tensor& grad) {
    queue_backward_callback([&] {
      events.push_back("callback 0");
      queue_backward_callback([&] { events.push_back("callback 2"); });
    });
    return TensorList{grad};
  }).backward(ones({2}));
  EXPECT_EQ(events,
            (std::vector<std::string>{"inner", "outer", "callback 0", "callback 1", "callback 2"}));
  EXPECT_TRUE(inner.grad().defined() && x.grad().defined());
  EXPECT_EQ(message_of<Error>([] { queue_backward_callback([] {}); }),
            "queue_backward_callback: no backward is under way in this thread");
}

/// A Function whose backward goes `depth` backwards deep, each through a graph of its own.
Tensor nested(const Tensor& x, const Tensor& leaf, int depth) {
  return probe(x, "nested", [=](const Tensor& grad) {
    if (depth > 0) {
      const GradModeGuard on(true);
      nested(mul(leaf, leaf), leaf, depth - 1).backward(grad);
    }
    return TensorList{grad};
  });
}

TEST(Reentrancy, GoesAsDeepAsItIsAsked) {
  const Tensor x = variable({2}), leaf = variable({2}, 5);
  nested(x, leaf, 50).backward(ones({2}));
  EXPECT_TRUE(bitwise_equal(x.grad(), ones({2})));
  Tensor expected = Tensor::zeros({2}, Dtype::kFloat64);
  for (int i = 0; i < 50; ++i) {
    expected = add(expected, add(leaf.detach(), leaf.detach()));
  }
  EXPECT_TRUE(test::all_close(leaf.grad(), expected, 1e-14, 0.0));
}

TEST(Reentrancy, InnerAndOuterMayReachTheSameLeaf) {
  const Tensor x = variable({2});
  const Tensor y = probe(x, "outer", [&](const Tensor& grad) {
    const GradModeGuard on(true);
    mul(x, x).backward(grad);
    return TensorList{grad};
  });
  y.backward(ones({2}));
  EXPECT_TRUE(bitwise_equal(x.grad(), add(add(x.detach(), x.detach()), ones({2}))));
}

TEST(Reentrancy, AnExceptionInsideLeavesTheThreadUsable) {
  const Tensor x = variable({2});
  const Tensor y = probe(x, "outer", [&](const Tensor& grad) -> TensorList {
    const GradModeGuard on(true);
    probe(x, "inner", [](const Tensor&) -> TensorList {
      throw Error("from inside");
    }).backward(grad);
    return {grad};
  });
  EXPECT_EQ(message_of<Error>([&] { y.backward(ones({2})); }), "from inside");
  EXPECT_THROW(queue_backward_callback([] {}), Error);  // no backward is left under way
  mul(x, x).backward(ones({2}));
  EXPECT_TRUE(bitwise_equal(x.grad(), add(x.detach(), x.detach())));
}

}  // namespace
}  // namespace moegrad::reentrancy_test
