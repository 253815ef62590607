// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "ops/kernels/pack.h"

namespace moegrad::kernels {

/// A [m, k] with A[i, p] = data[i * row_stride + p * k_stride]; one of the strides is 1. The same
/// kernel serves X (forward, dX: k_stride 1) and X^T (dW: row_stride 1).
template <class T>
struct LeftOperand {
  const T* data = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t k_stride = 1;
};

/// C [m, n] = A [m, k] B [k, n], overwriting rows of C that are `c_stride` elements apart.
template <class T>
struct MatmulProblem {
  LeftOperand<T> a;
  RightOperand<T> b;
  T* c = nullptr;
  std::int64_t c_stride = 0;
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
};

/// A task's share of C is at most kBlockRows x kBlockColumns, constants, so that the cuts depend on
/// the problem alone. One cache block of B's columns, 256 KB of floats, stays in the second level.
inline constexpr std::int64_t kBlockRows = 768;
inline constexpr std::int64_t kBlockColumns = 128;

/// Computes C[i0 : min(i0 + kBlockRows, m), j0 : min(j0 + kBlockColumns, n)] in the order of Note
/// [Matmul order]; i0 and j0 are multiples of the block. Packs what is not packed yet into a
/// scratch block of the calling thread.
template <class T>
void matmul_block(const MatmulProblem<T>& problem, std::int64_t i0, std::int64_t j0);

}  // namespace moegrad::kernels
