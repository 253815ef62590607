// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/product_loops_avx512.h"

#include "ops/kernels/product_loops_of.h"

namespace moegrad::kernels {

const ProductLoops<float>* avx512_product_loops() {
#if defined(__AVX512F__)
  return &kProductLoops<float, Vec<float, 64>>;
#else
  return nullptr;
#endif
}

}  // namespace moegrad::kernels
