// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/few_rows_matmul.h"

#include <algorithm>
#include <array>
#include <cassert>

#include "framework/tensor/layout.h"
#include "ops/kernels/block_sums.h"
#include "ops/kernels/even_cuts.h"
#include "ops/kernels/halving.h"

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
  static_assert(BlockSums<T>::kFullColumns % kWidth == 0 && kChainTerms % kNzBlock == 0);
  const auto& b = problem.b;
  const auto row_stride = problem.a.row_stride;
  const T* const a = problem.a.data + i0 * row_stride;
  const EvenCuts cuts(rows, loops.most_rows);
  Block<T> block{};
  // Chains are computed in scratch, where rows have room for whole blocks: level 1 and upwards.
  const BlockSums<T> sums(problem.c + i0 * problem.c_stride + j0, problem.c_stride, rows, columns,
                          2 + most_levels(problem.k, kChainTerms, kHalvingUnit, false));
  for_each_part(
      0, problem.k, kChainTerms, kHalvingUnit, 1, false,
      [&](std::int64_t begin, std::int64_t terms, int level, bool adds) {
        const auto to = sums.at(adds ? level + 1 : level);
        std::fill_n(to.data, rows * to.stride, T(0));
        for (auto p = begin; p < begin + terms; p += kNzBlock) {
          const auto steps = std::min(kNzBlock, begin + terms - p);
          const T* const panel = b.data + p * b.stride + j0 * kNzBlock;
          const bool in_registers = rows == 1 && steps == kNzBlock && loops.add_stored != nullptr;
          // The last columns, fewer than kWidth, are blocks: past them B^T has no rows to read.
          const auto whole = in_registers ? columns / kWidth * kWidth : 0;
          for (std::int64_t j = 0; j < whole; j += kNzBlock) {
            loops.add_stored(a + p, panel + j * kNzBlock, to.data + j);
          }
          for (auto j = whole; j < columns; j += kWidth) {
            add_block(loops, panel + j * kNzBlock, std::min(kWidth, columns - j), a + p, row_stride,
                      cuts, steps, block, to.data + j, to.stride);
          }
        }
        if (adds) sums.join(level);
      },
      [&](int level) { sums.join(level); });
  if (problem.adds) return sums.join(0);
  const auto from = sums.at(1), to = sums.at(0);
  for (std::int64_t i = 0; i < rows; ++i) {
    std::copy_n(from.data + i * from.stride, columns, to.data + i * to.stride);
  }
}

template void few_rows_matmul_block<float>(const MatmulProblem<float>&, std::int64_t, std::int64_t,
                                           std::int64_t, std::int64_t, const FewRowsLoops<float>&);
template void few_rows_matmul_block<double>(const MatmulProblem<double>&, std::int64_t,
                                            std::int64_t, std::int64_t, std::int64_t,
                                            const FewRowsLoops<double>&);

}  // namespace moegrad::kernels
