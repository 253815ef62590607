// SPDX-License-Identifier: Apache-2.0
#include "optim/rmsprop.h"

#include <cmath>

#include "tests/nn/small_modules.h"
#include "tests/optim/scalar_steps.h"
#include "tests/testing.h"

namespace moegrad::optim::rmsprop_test {
namespace {

TEST(RMSprop, MatchesScalarFormulas) {
  for (const bool centered : {false, true}) {
    for (const double momentum : {0.0, 0.75}) {
      test::expect_scalar_steps<RMSprop>({.lr = 0.02,
                                          .alpha = 0.9,
                                          .eps = 1e-3,
                                          .weight_decay = 0.1,
                                          .momentum = momentum,
                                          .centered = centered},
                                         [&] {
                                           return [=, v = 0.0, m = 0.0, b = 0.0](
                                                      int /*t*/, double& p, double g) mutable {
                                             g += 0.1 * p;
                                             v = 0.9 * v + (1 - 0.9) * g * g;
                                             m = centered ? 0.9 * m + (1 - 0.9) * g : 0.0;
                                             b = momentum * b + g / (std::sqrt(v - m * m) + 1e-3);
                                             p -= 0.02 * b;
                                           };
                                         });
    }
  }
}

TEST(RMSprop, KeepsWhatItsSettingsNeed) {
  const auto keys = [](const RMSprop::Config& config) {
    return test::names_of(RMSprop({{"p", test::variable({2})}}, config).state_dict());
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(keys({}), Names{"p.square_avg"});
  EXPECT_EQ(keys({.momentum = 0.5}), (Names{"p.square_avg", "p.momentum_buffer"}));
  EXPECT_EQ(keys({.momentum = 0.5, .centered = true}),
            (Names{"p.square_avg", "p.momentum_buffer", "p.grad_avg"}));
}

TEST(RMSprop, ACentredVarianceIsNeverNegative) {
  const Tensor w = Tensor::ones({1});
  RMSprop optimizer({{"w", w}}, {.centered = true});
  for (int step = 0; step < 2000; ++step) {  // of equal gradients
    w.set_grad(Tensor::full({1}, 0.1));
    optimizer.step();
  }
  EXPECT_TRUE(std::isfinite(w.item()));
}

}  // namespace
}  // namespace moegrad::optim::rmsprop_test
