// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/kernels/halving.h"
#include "ops/kernels/matmul_kernel.h"

namespace moegrad::kernels {

// Note [Transposed product]
// In NZ the transpose B^T of the right operand (the weight, for the input gradient) has sixteen
// steps of the reduction side by side in one cache line. A right operand must be panels [k, 16], so
// such a B would have to be transposed. A left operand is read one element at a time and broadcast,
// so it may be stored in any order. Therefore the product is computed the other way round,
//
//     C^T = B^T A^T:
//
// B^T is the left operand and is read in place, each line once. The rows of A, which are few
// compared with B, are packed into panels. Tiles of C^T are collected in scratch and transposed
// into C. Every element is still the sum of Note [Matmul order].

/// The number of columns of C (rows of C^T) that are computed before they are transposed into C. At
/// the right edge there are fewer, a multiple of 16.
inline constexpr std::int64_t kTransposedGroup = 48;
inline constexpr std::int64_t kMostPanelUnits = 3;

/// The inner loops for one vector width.
template <class T>
struct TransposedLoops {
  /// C^T[j, i] = sum over p of B^T[j, p] A^T[p, i], or with `adds`, C^T + that, for `rows` rows j,
  /// kTransposedGroup or a smaller multiple of 16, and 1 to kMostPanelUnits units of columns i.
  ///
  /// B^T is stored at `b` as in NZ, B^T[j, p] = b[p / 16 * block_step + j * 16 + p % 16]. A^T is a
  /// panel [k, width] and C^T a tile [rows, width], where width is the columns of those units.
  using MultiplyRows = void (*)(const T* b, std::int64_t block_step, const T* panel,
                                const Chains& chains, T* tile, std::int64_t rows, bool adds);

  std::int64_t unit;  // 8 or 16 columns
  MultiplyRows by_units[kMostPanelUnits];
};

/// matmul_block for a right operand in the form kNzTransposed and more than kFewRows rows.
template <class T>
void transposed_matmul_block(const MatmulProblem<T>& problem, std::int64_t i0, std::int64_t rows,
                             std::int64_t j0, std::int64_t columns,
                             const TransposedLoops<T>& loops);

}  // namespace moegrad::kernels
