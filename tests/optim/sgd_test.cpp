// SPDX-License-Identifier: Apache-2.0
#include "optim/sgd.h"

#include <vector>

#include "framework/runtime/arena.h"
#include "framework/runtime/rank_context.h"
#include "tests/testing.h"

namespace moegrad::optim::sgd_test {
namespace {

using namespace test;

/// 100 steps of torch.optim.SGD's loop; the momentum buffer begins as the first gradient.
void expect_reference(const SGD::Config& config) {
  Tensor parameter = randn({5, 2}, 2);
  const Tensor start = clone(parameter);
  std::vector<double> expected(start.data<double>().begin(), start.data<double>().end());
  std::vector<double> buffer;
  const Tensor other = randn({2}, 3);  // has a gradient where the first one has none
  SGD optimizer({{"p", parameter}, {"other", other}}, config);
  for (std::uint64_t step = 0; step < 100; ++step) {
    const Tensor grad = randn({5, 2}, 50 + step);
    optimizer.zero_grad();
    other.set_grad(randn({2}, 4));
    if (step % 7 != 3) parameter.set_grad(grad);  // left out now and then
    optimizer.step();
    if (step % 7 == 3) continue;
    std::vector<double> g(grad.data<double>().begin(), grad.data<double>().end());
    for (std::size_t i = 0; i < g.size(); ++i) g[i] += config.weight_decay * expected[i];
    if (buffer.empty()) {
      buffer = g;
    } else {
      for (std::size_t i = 0; i < g.size(); ++i) buffer[i] = config.momentum * buffer[i] + g[i];
    }
    for (std::size_t i = 0; i < g.size(); ++i) {
      double direction = g[i];
      if (config.momentum != 0.0) {
        direction = config.nesterov ? g[i] + config.momentum * buffer[i] : buffer[i];
      }
      expected[i] -= config.lr * direction;
    }
  }
  EXPECT_TRUE(test::all_close(parameter, Tensor::from(expected, parameter.shape()), 1e-13, 1e-14));
}

TEST(SGD, MatchesScalarFormulasOver100Steps) {
  expect_reference({.lr = 0.05});
  expect_reference({.lr = 0.05, .weight_decay = 0.1});
  expect_reference({.lr = 0.05, .momentum = 0.9});
  expect_reference({.lr = 0.02, .momentum = 0.8, .weight_decay = 0.01, .nesterov = true});
}

TEST(SGD, AllocatesBuffersOnlyForMomentum) {
  RankContext context;
  const RankContextGuard guard(context);
  const Tensor p = randn({4}, 1, Dtype::kFloat32, true);
  const SGD plain({{"p", p}}, {});
  EXPECT_EQ(context.arena()->live()[MemoryTag::kOptimizer], 0);
  const SGD heavy({{"p", p}}, {.momentum = 0.9});
  EXPECT_EQ(context.arena()->live()[MemoryTag::kOptimizer], 16);
}

TEST(SGD, RejectsWhatCannotBe) {
  const Tensor p = randn({4});
  EXPECT_EQ(message_of<ValueError>([&] {
              SGD({{"p", p}}, {.momentum = -1.0});
            }),
            "SGD: momentum must be finite and >= 0, got -1");
  EXPECT_EQ(message_of<ValueError>([&] {
              SGD({{"p", p}}, {.nesterov = true});
            }),
            "SGD: nesterov needs momentum > 0, got 0");
}

}  // namespace
}  // namespace moegrad::optim::sgd_test
