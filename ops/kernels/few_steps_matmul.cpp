// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/few_steps_matmul.h"

#include <algorithm>
#include <array>
#include <cassert>

namespace moegrad::kernels {

template <class T>
void few_steps_matmul_block(const MatmulProblem<T>& problem, std::int64_t i0, std::int64_t rows,
                            std::int64_t j0, std::int64_t columns, const FewStepsLoops<T>& loops) {
  assert(problem.k <= kFewSteps && problem.b.form == RightForm::kRows);
  constexpr std::int64_t kMostLanes = 64 / sizeof(T);
  const auto multiply = loops.by_steps[problem.k];
  const auto stride = problem.c_stride;
  auto a = problem.a;
  a.data += i0 * a.row_stride;
  const T* const b = problem.b.data + j0;
  T* const c = problem.c + i0 * stride + j0;
  const auto rest = columns % loops.lanes, whole = columns - rest;
  multiply(a, b, problem.b.stride, rows, whole, c, stride, problem.adds);
  if (rest == 0) return;
  // Buffers for the last columns of B and C, filled up to whole vectors.
  std::array<T, kFewSteps * kMostLanes> edge_b{};
  for (std::int64_t p = 0; p < problem.k; ++p) {
    std::copy_n(b + p * problem.b.stride + whole, rest, edge_b.data() + p * kMostLanes);
  }
  for (std::int64_t i = 0; i < rows; ++i, a.data += a.row_stride) {
    T* const row = c + i * stride + whole;
    std::array<T, kMostLanes> edge{};
    if (problem.adds) std::copy_n(row, rest, edge.data());
    multiply(a, edge_b.data(), kMostLanes, 1, loops.lanes, edge.data(), kMostLanes, problem.adds);
    std::copy_n(edge.data(), rest, row);
  }
}

template void few_steps_matmul_block<float>(const MatmulProblem<float>&, std::int64_t, std::int64_t,
                                            std::int64_t, std::int64_t,
                                            const FewStepsLoops<float>&);
template void few_steps_matmul_block<double>(const MatmulProblem<double>&, std::int64_t,
                                             std::int64_t, std::int64_t, std::int64_t,
                                             const FewStepsLoops<double>&);

}  // namespace moegrad::kernels
