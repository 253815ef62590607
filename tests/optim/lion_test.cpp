// SPDX-License-Identifier: Apache-2.0
#include "optim/lion.h"

#include <cmath>
#include <limits>
#include <utility>

#include "tests/optim/scalar_steps.h"
#include "tests/testing.h"

namespace moegrad::optim::lion_test {
namespace {

TEST(Lion, MatchesScalarFormulas) {
  test::expect_scalar_steps<Lion>({.lr = 0.01, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.3},
                                  [] {
                                    return [m = 0.0](int /*t*/, double& p, double g) mutable {
                                      const double direction = 0.8 * m + (1 - 0.8) * g;
                                      p = p * (1 - 0.01 * 0.3) - 0.01 * (direction > 0 ? 1 : -1);
                                      m = 0.95 * m + (1 - 0.95) * g;
                                    };
                                  });
}

TEST(Lion, TakesNoStepWithoutASignAndKeepsNan) {
  const Tensor p = Tensor::ones({3}, Dtype::kFloat64);
  Lion optimizer({{"p", p}}, {.lr = 0.5});
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  p.set_grad(Tensor::from(std::vector<double>{0.0, -2.0, kNan}, {3}));
  optimizer.step();
  const auto values = std::as_const(p).data<double>();
  EXPECT_EQ(values[0], 1.0);
  EXPECT_EQ(values[1], 1.5);
  EXPECT_TRUE(std::isnan(values[2]));
}

}  // namespace
}  // namespace moegrad::optim::lion_test
