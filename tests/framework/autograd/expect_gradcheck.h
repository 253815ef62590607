// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "framework/autograd/gradcheck.h"
#include "tests/testing.h"

namespace moegrad::test {

using GradcheckFunction = std::function<TensorList(const TensorList&)>;

/// Expects gradcheck to fail with this kind and message, in full and in fast mode.
inline void expect_failure(const GradcheckFunction& f, const TensorList& inputs,
                           GradcheckFailure kind, const std::string& message,
                           GradcheckOptions options = {}) {
  for (const bool fast : {false, true}) {
    options.fast_mode = fast;
    const auto result = gradcheck(f, inputs, options);
    EXPECT_EQ(result.kind, kind) << "fast " << fast;
    EXPECT_EQ(result.message, message) << "fast " << fast;
    EXPECT_FALSE(result);
  }
}

inline void expect_success(const GradcheckFunction& f, const TensorList& inputs,
                           GradcheckOptions options = {}) {
  for (const bool fast : {false, true}) {
    options.fast_mode = fast;
    EXPECT_TRUE(gradients_agree(f, inputs, options)) << "fast " << fast;
  }
}

}  // namespace moegrad::test
