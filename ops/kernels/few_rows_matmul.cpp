// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/few_rows_matmul.h"

#include <algorithm>
#include <array>
#include <cassert>

#include "framework/tensor/layout.h"
#include "ops/kernels/even_cuts.h"
#include "ops/kernels/matmul_tile.h"
#include "ops/kernels/transpose_8x8.h"

namespace moegrad::kernels {
namespace {

constexpr std::int64_t kWidth = 32;  // columns of C, rows of the stored B^T, at a time

// Rows of C at a time: three by four vectors of floats leave registers for the operands.
template <class T>
constexpr std::int64_t kMostRows = sizeof(T) == 4 ? 3 : 1;

template <class T>
using Block = std::array<T, kNzBlock * kWidth>;

// C[i, j] = chain of `steps` <= 16 of A[i, p] B[p, j], on from what C holds, for kRows rows i and
// 32 columns j; B is [16, 32].
template <class T, int kRows>
void add_steps(const T* a, std::int64_t row_stride, const T* b, std::int64_t steps, T* c,
               std::int64_t c_stride) {
  constexpr int kLanes = Vec<T>::kLanes, kVecs = static_cast<int>(kWidth) / kLanes;
  Vec<T> sum[kRows][kVecs];
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) sum[i][v] = Vec<T>::load(c + i * c_stride + v * kLanes);
  }
  for (std::int64_t p = 0; p < steps; ++p) {
    Vec<T> left[kRows];
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) left[i] = Vec<T>::broadcast(a[i * row_stride + p]);
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) {
      const auto right = Vec<T>::load(b + p * kWidth + v * kLanes);
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) accumulate(sum[i][v], left[i], right);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) sum[i][v].store(c + i * c_stride + v * kLanes);
  }
}

template <class T>
auto add_steps_of([[maybe_unused]] std::int64_t rows) {
  if constexpr (kMostRows<T> == 1) {
    return &add_steps<T, 1>;
  } else {
    return rows == 1 ? &add_steps<T, 1> : rows == 2 ? &add_steps<T, 2> : &add_steps<T, 3>;
  }
}

// Sixteen steps, or the last few, of `columns` <= 32 columns of all rows, `stored` being the first
// of them in NZ. The block is turned as far as there are columns; what it held before makes sums
// that nobody reads.
template <class T>
void add_block(const T* stored, std::int64_t columns, const T* a, std::int64_t row_stride,
               const EvenCuts& cuts, std::int64_t steps, Block<T>& block, T* c,
               std::int64_t c_stride) {
  for (std::int64_t j = 0; j < columns; j += 8) {
    for (std::int64_t p = 0; p < kNzBlock; p += 8) {
      transpose_8x8([&](int r) { return stored + (j + r) * kNzBlock + p; },
                    block.data() + p * kWidth + j, kWidth);
    }
  }
  for (std::int64_t s = 0; s < cuts.count(); ++s) {
    const auto i = cuts.begin(s);
    add_steps_of<T>(cuts.length(s))(a + i * row_stride, row_stride, block.data(), steps,
                                    c + i * c_stride, c_stride);
  }
}

}  // namespace

template <class T>
void few_rows_matmul_block(const MatmulProblem<T>& problem, std::int64_t i0, std::int64_t rows,
                           std::int64_t j0, std::int64_t columns) {
  assert(rows <= kFewRows);
  const auto& b = problem.b;
  const auto row_stride = problem.a.row_stride;
  const T* const a = problem.a.data + i0 * row_stride;
  T* const c = problem.c + i0 * problem.c_stride + j0;
  const EvenCuts cuts(rows, kMostRows<T>);
  if (!problem.resume) {
    for (std::int64_t i = 0; i < rows; ++i) std::fill_n(c + i * problem.c_stride, columns, T(0));
  }
  Block<T> block{};
  const auto whole = columns / kWidth * kWidth, rest = columns - whole;
  std::array<T, kFewRows * kWidth> edge{};  // the last columns of C, fewer than 32
  for (std::int64_t i = 0; i < rows; ++i) {
    std::copy_n(c + i * problem.c_stride + whole, rest, edge.data() + i * kWidth);
  }
  for (std::int64_t p = 0; p < problem.k; p += kNzBlock) {
    const auto steps = std::min(kNzBlock, problem.k - p);
    const T* const panel = b.data + p * b.stride + j0 * kNzBlock;
    for (std::int64_t j = 0; j < whole; j += kWidth) {
      add_block(panel + j * kNzBlock, kWidth, a + p, row_stride, cuts, steps, block, c + j,
                problem.c_stride);
    }
    if (rest > 0) {  // rows of B^T past the last are zero padding
      add_block(panel + whole * kNzBlock, rest, a + p, row_stride, cuts, steps, block, edge.data(),
                kWidth);
    }
  }
  for (std::int64_t i = 0; i < rows; ++i) {
    std::copy_n(edge.data() + i * kWidth, rest, c + i * problem.c_stride + whole);
  }
}

template void few_rows_matmul_block<float>(const MatmulProblem<float>&, std::int64_t, std::int64_t,
                                           std::int64_t, std::int64_t);
template void few_rows_matmul_block<double>(const MatmulProblem<double>&, std::int64_t,
                                            std::int64_t, std::int64_t, std::int64_t);

}  // namespace moegrad::kernels
