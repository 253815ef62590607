// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/kernels/matmul_kernel.h"

namespace moegrad::kernels {

// Note [Transposed product]
// In NZ the transpose B^T of the right operand (the weight, for the input gradient) has sixteen
// steps of the reduction side by side in one cache line. A right operand must be panels [k, 16], so
// reading such a B means to transpose it; a left operand is read one element at a time, to be
// broadcast, and may lie in any order. So the product is computed the other way round,
//
//     C^T = B^T A^T:
//
// B^T is read where it is stored, each line once, as the left operand; the rows of A, which are few
// beside B, are packed into panels; tiles of C^T collect in scratch and are transposed into C.
// Every element is still the chain of Note [Matmul order].

/// matmul_block for a right operand in the form kNzTransposed and more than kFewRows rows.
template <class T>
void transposed_matmul_block(const MatmulProblem<T>& problem, std::int64_t i0, std::int64_t rows,
                             std::int64_t j0, std::int64_t columns);

}  // namespace moegrad::kernels
