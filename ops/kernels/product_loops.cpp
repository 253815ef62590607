// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/product_loops.h"

#include "ops/kernels/product_loops_avx512.h"
#include "ops/kernels/product_loops_of.h"

namespace moegrad::kernels {

template <class T>
const ProductLoops<T>& narrow_product_loops() {
  return kProductLoops<T, Vec<T>>;
}

bool has_avx512() {
#if !defined(__x86_64__)
  return false;
#else
  return __builtin_cpu_supports("avx512f") != 0 && avx512_product_loops() != nullptr;
#endif
}

template <>
const ProductLoops<double>& product_loops<double>() {
  return narrow_product_loops<double>();
}

template <>
const ProductLoops<float>& product_loops<float>() {
  return has_avx512() ? *avx512_product_loops() : narrow_product_loops<float>();
}

template const ProductLoops<float>& narrow_product_loops<float>();
template const ProductLoops<double>& narrow_product_loops<double>();

}  // namespace moegrad::kernels
