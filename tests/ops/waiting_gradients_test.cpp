// SPDX-License-Identifier: Apache-2.0
// The products whose weight gradients may wait, under a queue.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "framework/autograd/weight_gradients.h"
#include "ops/elementwise.h"
#include "ops/grouped_matmul.h"
#include "ops/linear.h"
#include "ops/npu_gmm.h"
#include "tests/testing.h"

namespace moegrad::ops::waiting_gradients_test {
namespace {

using namespace test;

struct Case {
  std::string what;
  Shape weight;
  std::function<Tensor(const Tensor& x, const Tensor& weight)> product;  // [7, 4] -> [7, 4]
};

std::vector<Case> cases() {
  const RowGroups groups(2, {2, 0, 1, 1, 0, 3});  // of two sources, one expert without rows
  return {{"linear", {4, 4}, [](const Tensor& x, const Tensor& w) { return linear(x, w); }},
          {"npu_gmm",
           {3, 4, 4},
           [=](const Tensor& x, const Tensor& w) { return npu_gmm(w, x, groups); }},
          {"npu_gmm, stacked",
           {12, 4},
           [=](const Tensor& x, const Tensor& w) { return npu_gmm(w, x, groups); }},
          {"grouped_matmul", {3, 4, 4}, [=](const Tensor& x, const Tensor& w) {
             return grouped_matmul(x, w, groups, /*transpose_weight=*/true);
           }}};
}

/// The weight is used three times.
Tensor net(const Case& c, const Tensor& x, const Tensor& weight) {
  const Tensor h = tanh(c.product(tanh(c.product(x, weight)), weight));
  return c.product(h, weight);
}

TEST(WaitingGradients, AreRight) {
  for (const auto& c : cases()) {
    WeightGradientQueue queue;
    const WeightGradientsGuard guard(queue);
    const auto function = [&](const TensorList& in) { return TensorList{net(c, in[0], in[1])}; };
    EXPECT_TRUE(moegrad::gradients_agree(function, {variable({7, 4}, 1), variable(c.weight, 2)}))
        << c.what;
  }
}

TEST(WaitingGradients, WaitAndHaveTheirBits) {
  for (const auto& c : cases()) {
    for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
      const auto gradients = [&](WeightGradientQueue* queue, std::size_t* most) {
        const Tensor x = randn({7, 4}, 1, dtype, true), weight = randn(c.weight, 2, dtype, true);
        const auto hook = x.register_hook([&](const Tensor&) {
          if (queue != nullptr) *most = queue->size();
          return Tensor();
        });
        net(c, x, weight).backward(randn({7, 4}, 3, dtype));
        return TensorList{x.grad(), weight.grad()};
      };
      const auto expected = gradients(nullptr, nullptr);
      WeightGradientQueue queue;
      const WeightGradientsGuard guard(queue);
      std::size_t most = 0;
      const auto got = gradients(&queue, &most);
      EXPECT_EQ(most, 3U) << c.what;
      EXPECT_EQ(queue.size(), 0U) << c.what;
      for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(bitwise_equal(got[i], expected[i])) << c.what;
    }
  }
}

}  // namespace
}  // namespace moegrad::ops::waiting_gradients_test
