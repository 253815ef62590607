// SPDX-License-Identifier: Apache-2.0
#pragma once

// Opt-in: needs GoogleTest.

#include <gtest/gtest.h>

#include "framework/autograd/gradcheck.h"

namespace moegrad {

/// gradcheck() as an assertion: EXPECT_TRUE(gradients_agree(f, inputs)) reports what disagreed.
inline ::testing::AssertionResult gradients_agree(
    const std::function<TensorList(const TensorList&)>& f, const TensorList& inputs,
    const GradcheckOptions& options = {}) {
  const auto result = gradcheck(f, inputs, options);
  if (result) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << result.message;
}

}  // namespace moegrad
