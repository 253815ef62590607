// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace moegrad::bench {

/// C [m, n] = op(A) op(B), float32, row-major without gaps; op transposes what is flagged: A is
/// then stored [k, m], B [n, k].
struct Gemm {
  bool transpose_a, transpose_b;
  std::int64_t m, n, k;
  const float *a, *b;
  float* c;
};

/// A library's matrix product, on one thread.
struct BlasLibrary {
  std::string name;
  std::function<void(const Gemm&)> multiply;
};

/// Eigen, and those of OpenBLAS, BLIS and oneDNN that the dynamic linker finds.
std::vector<BlasLibrary> blas_libraries();

}  // namespace moegrad::bench
