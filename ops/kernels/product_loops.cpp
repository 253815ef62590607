// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/product_loops.h"

#include "framework/runtime/rank_context.h"
#include "ops/kernels/product_loops_avx512.h"
#include "ops/kernels/product_loops_of.h"

namespace moegrad::kernels {

template <class T>
const ProductLoops<T>& narrow_product_loops() {
  return kProductLoops<T, Vec<T>>;
}

bool uses_avx512() { return RankContext::current_kernels() != CpuKernels::kNarrow; }

template <>
const ProductLoops<double>& product_loops<double>() {
  return narrow_product_loops<double>();
}

template <>
const ProductLoops<float>& product_loops<float>() {
  return uses_avx512() ? *avx512_product_loops() : narrow_product_loops<float>();
}

template const ProductLoops<float>& narrow_product_loops<float>();
template const ProductLoops<double>& narrow_product_loops<double>();

}  // namespace moegrad::kernels
