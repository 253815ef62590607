// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/kernels/matmul_kernel.h"

namespace moegrad::kernels {

/// Up to this many rows, broadcasting each element of B (Note [Transposed product]) costs more than
/// transposing blocks of B.
inline constexpr std::int64_t kFewRows = 8;

/// Columns of C (rows of the stored B^T) that are processed at a time.
inline constexpr std::int64_t kFewRowsColumns = 32;

/// The inner loops for one vector width. They take a block of B, or a block as NZ stores it: 16
/// steps p by 16 columns j, stored[j * 16 + p].
template <class T>
struct FewRowsLoops {
  /// block[p * 32 + j] = stored[j * 16 + p].
  void (*turn)(const T* stored, T* block);

  /// C[i, j] = chain of `steps` <= 16 of A[i, p] B[p, j], starting from the value in C, for some
  /// rows i and 32 columns j. B is [16, 32].
  using AddSteps = void (*)(const T* a, std::int64_t row_stride, const T* b, std::int64_t steps,
                            T* c, std::int64_t c_stride);
  AddSteps add_steps(std::int64_t rows) const { return by_rows[rows - 1]; }

  /// AddSteps for one row, 16 steps and 16 columns of a block as NZ stores it. The block is
  /// transposed in registers and used at once. Null if that gains nothing.
  void (*add_stored)(const T* a, const T* stored, T* c);

  std::int64_t most_rows;
  AddSteps by_rows[kFewRows];  // up to most_rows
};

/// matmul_block for a right operand in the form kNzTransposed and at most kFewRows rows. B is read
/// once from front to back. Each block of it, 16 steps by 32 columns, is transposed and used at
/// once by all rows. The sums stay in scratch; with few rows, that stays in the first cache levels.
template <class T>
void few_rows_matmul_block(const MatmulProblem<T>& problem, std::int64_t i0, std::int64_t rows,
                           std::int64_t j0, std::int64_t columns, const FewRowsLoops<T>& loops);

}  // namespace moegrad::kernels
