// SPDX-License-Identifier: Apache-2.0
// Nothing but one header of one library.
#include <iostream>

#include "ops/rms_norm.h"

static_assert(EIGEN_FAST_MATH == 0);  // as the targets define it, for who uses as_eigen.h

int main() {
  const auto y = moegrad::ops::rms_norm(moegrad::Tensor::full({1, 4}, -2.0),
                                        moegrad::Tensor::full({4}, 3.0), /*eps=*/0.0);
  std::cout << "rms_norm " << y.data<float>()[0] << '\n';
}
