// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/kernels/matmul_kernel.h"

namespace moegrad::kernels {

/// Up to so many rows, to broadcast each element of B (Note [Transposed product]) costs more than
/// to turn blocks of B.
inline constexpr std::int64_t kFewRows = 8;

/// matmul_block for a right operand in the form kNzTransposed and at most kFewRows rows. B is read
/// once from front to back. Each block of it, 16 steps by 32 columns, is turned and used at once by
/// all rows; the sums stay in C, which few rows leave in the first cache level.
template <class T>
void few_rows_matmul_block(const MatmulProblem<T>& problem, std::int64_t i0, std::int64_t rows,
                           std::int64_t j0, std::int64_t columns);

}  // namespace moegrad::kernels
