// SPDX-License-Identifier: Apache-2.0
#pragma once

// Opt-in: needs GoogleTest. EXPECT_TRUE(testing::gradcheck(f, inputs)) reports what disagreed.

#include <gtest/gtest.h>

#include "framework/autograd/gradcheck.h"

namespace moegrad::testing {

inline ::testing::AssertionResult gradcheck(const std::function<TensorList(const TensorList&)>& f,
                                            const TensorList& inputs,
                                            const GradcheckOptions& options = {}) {
  const auto result = moegrad::gradcheck(f, inputs, options);
  if (result) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << result.message;
}

}  // namespace moegrad::testing
