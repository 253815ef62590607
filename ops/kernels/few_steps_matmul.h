// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "ops/kernels/matmul_kernel.h"

namespace moegrad::kernels {

/// The longest reduction that few_steps_matmul_block is used for.
inline constexpr int kFewSteps = 8;

/// The inner loops for one vector width.
template <class T>
struct FewStepsLoops {
  /// C[i, j] = chain over all steps p of A[i, p] B[p, j], or with `adds`, C + chain, for `rows`
  /// rows i and `columns` columns j, a multiple of `lanes`; B has rows of b_stride elements.
  using MultiplyRows = void (*)(const LeftOperand<T>& a, const T* b, std::int64_t b_stride,
                                std::int64_t rows, std::int64_t columns, T* c,
                                std::int64_t c_stride, bool adds);

  std::int64_t lanes;
  MultiplyRows by_steps[kFewSteps + 1];
};

/// matmul_block for a reduction of a few steps, where B is stored as rows: the weight gradient of
/// an expert with few tokens. Most of the time is spent on writing C. So the operands are read in
/// place and C is written row by row.
template <class T>
void few_steps_matmul_block(const MatmulProblem<T>& problem, std::int64_t i0, std::int64_t rows,
                            std::int64_t j0, std::int64_t columns, const FewStepsLoops<T>& loops);

}  // namespace moegrad::kernels
