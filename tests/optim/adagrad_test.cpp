// SPDX-License-Identifier: Apache-2.0
#include "optim/adagrad.h"

#include <cmath>

#include "tests/optim/scalar_steps.h"
#include "tests/testing.h"

namespace moegrad::optim::adagrad_test {
namespace {

TEST(Adagrad, MatchesScalarFormulas) {
  test::expect_scalar_steps<Adagrad>({.lr = 0.2,
                                      .lr_decay = 0.3,
                                      .weight_decay = 0.1,
                                      .initial_accumulator_value = 0.5,
                                      .eps = 1e-3},
                                     [] {
                                       return [s = 0.5](int t, double& p, double g) mutable {
                                         g += 0.1 * p;
                                         s += g * g;
                                         p -= 0.2 / (1 + (t - 1) * 0.3) * g / (std::sqrt(s) + 1e-3);
                                       };
                                     });
}

}  // namespace
}  // namespace moegrad::optim::adagrad_test
