// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/kernels/product_loops.h"

namespace moegrad::kernels {

/// The loops for vectors of 64 bytes of floats (Note [Two vector widths]); null if the build has
/// none (the portable one).
const ProductLoops<float>* avx512_product_loops();

}  // namespace moegrad::kernels
