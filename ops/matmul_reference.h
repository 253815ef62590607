// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/tensor/tensor.h"

namespace moegrad::ops {

/// What matmul computes, by Eigen's products: the reference that the plain model and the tests
/// compare with. Eigen chooses its blocking from the sizes, so a row's bits may depend on how many
/// rows there are.
Tensor matmul_reference(const Tensor& a, const Tensor& b);

}  // namespace moegrad::ops
