// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/few_rows_matmul.h"

#include <algorithm>
#include <array>
#include <cassert>

#include "framework/tensor/layout.h"
#include "ops/kernels/even_cuts.h"

namespace moegrad::kernels {
namespace {

constexpr auto kWidth = kFewRowsColumns;

template <class T>
using Block = std::array<T, kNzBlock * kWidth>;

// Sixteen steps, or the last few, for `columns` <= 32 columns of all rows. `stored` points to the
// first of these columns in NZ. Only the columns that exist are transposed into the block. The old
// values in the rest of the block make sums that nobody reads.
template <class T>
void add_block(const FewRowsLoops<T>& loops, const T* stored, std::int64_t columns, const T* a,
               std::int64_t row_stride, const EvenCuts& cuts, std::int64_t steps, Block<T>& block,
               T* c, std::int64_t c_stride) {
  for (std::int64_t j = 0; j < columns; j += kNzBlock) {
    loops.turn(stored + j * kNzBlock, block.data() + j);
  }
  for (std::int64_t s = 0; s < cuts.count(); ++s) {
    const auto i = cuts.begin(s);
    loops.add_steps(cuts.length(s))(a + i * row_stride, row_stride, block.data(), steps,
                                    c + i * c_stride, c_stride);
  }
}

}  // namespace

template <class T>
void few_rows_matmul_block(const MatmulProblem<T>& problem, std::int64_t i0, std::int64_t rows,
                           std::int64_t j0, std::int64_t columns, const FewRowsLoops<T>& loops) {
  assert(rows <= kFewRows);
  const auto& b = problem.b;
  const auto row_stride = problem.a.row_stride;
  const T* const a = problem.a.data + i0 * row_stride;
  T* const c = problem.c + i0 * problem.c_stride + j0;
  const EvenCuts cuts(rows, loops.most_rows);
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
    if (rows == 1 && steps == kNzBlock && loops.add_stored != nullptr) {
      for (std::int64_t j = 0; j < whole; j += kNzBlock) {
        loops.add_stored(a + p, panel + j * kNzBlock, c + j);
      }
    } else {
      for (std::int64_t j = 0; j < whole; j += kWidth) {
        add_block(loops, panel + j * kNzBlock, kWidth, a + p, row_stride, cuts, steps, block, c + j,
                  problem.c_stride);
      }
    }
    if (rest > 0) {  // rows of B^T past the last are zero padding
      add_block(loops, panel + whole * kNzBlock, rest, a + p, row_stride, cuts, steps, block,
                edge.data(), kWidth);
    }
  }
  for (std::int64_t i = 0; i < rows; ++i) {
    std::copy_n(edge.data() + i * kWidth, rest, c + i * problem.c_stride + whole);
  }
}

template void few_rows_matmul_block<float>(const MatmulProblem<float>&, std::int64_t, std::int64_t,
                                           std::int64_t, std::int64_t, const FewRowsLoops<float>&);
template void few_rows_matmul_block<double>(const MatmulProblem<double>&, std::int64_t,
                                            std::int64_t, std::int64_t, std::int64_t,
                                            const FewRowsLoops<double>&);

}  // namespace moegrad::kernels
