// SPDX-License-Identifier: Apache-2.0
// A user's test of an op; tests/package_test.py compiles it where there is a GoogleTest.
#include <gtest/gtest.h>

#include "framework/autograd/gradcheck_gtest.h"
#include "moegrad.h"

using namespace moegrad;

class OwnOp : public testing::Test {};

TEST_F(OwnOp, GradientsMatchFiniteDifferences) {
  Tensor x = Tensor::full({2, 3}, 0.5, Dtype::kFloat64);
  x.set_requires_grad(true);
  const auto f = [](const TensorList& in) -> TensorList { return {in[0] * in[0]}; };
  EXPECT_TRUE(gradients_agree(f, {x})) << testing::Message("of x * x");
}
