// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "framework/tensor/layout.h"
#include "ops/kernels/add_row.h"
#include "ops/kernels/halving.h"
#include "ops/kernels/matmul_kernel.h"

namespace moegrad::kernels {

/// The levels of for_each_part (ops/kernels/halving.h) for a block of C. Level 0 is the block in C;
/// the others are scratch of the calling thread, where rows have room for whole blocks of
/// kFullColumns. The scratch grows to the longest sum and is kept, as that of tiles is.
template <class T>
class BlockSums {
 public:
  static constexpr std::int64_t kFullColumns = 32;
  struct Block {
    T* data;  // the first row
    std::int64_t stride;
  };

  BlockSums(T* c, std::int64_t c_stride, std::int64_t rows, std::int64_t columns, int levels)
      : c_{c, c_stride},
        rows_(rows),
        columns_(columns),
        stride_(round_up(columns, kFullColumns)),
        scratch_(scratch()) {
    const auto size = static_cast<std::size_t>((levels - 1) * rows * stride_);
    if (scratch_.size() < size) scratch_.resize(size);
  }

  Block at(int level) const {
    if (level == 0) return c_;
    return {scratch_.data() + (level - 1) * rows_ * stride_, stride_};
  }

  /// at(level) += at(level + 1)
  void join(int level) const {
    const auto to = at(level), from = at(level + 1);
    for (std::int64_t i = 0; i < rows_; ++i) {
      add_row(from.data + i * from.stride, to.data + i * to.stride, columns_);
    }
  }

 private:
  static std::vector<T>& scratch() {
    thread_local std::vector<T> block;
    return block;
  }

  Block c_;
  std::int64_t rows_, columns_, stride_;
  std::vector<T>& scratch_;
};

/// Walks the reduction of a block of C by subtrees of at most `longest` steps: part(k0, depth, to,
/// adds) sets the block `to` to the product over depth steps from k0 on, or with `adds`, adds it.
template <class T, class Part>
void walk_reduction(const MatmulProblem<T>& problem, std::int64_t i0, std::int64_t rows,
                    std::int64_t j0, std::int64_t columns, std::int64_t longest, const Part& part) {
  const BlockSums<T> sums(problem.c + i0 * problem.c_stride + j0, problem.c_stride, rows, columns,
                          most_levels(problem.k, longest, kHalvingUnit, problem.adds));
  for_each_part(
      0, problem.k, longest, kHalvingUnit, 0, problem.adds,
      [&](std::int64_t k0, std::int64_t depth, int level, bool adds) {
        part(k0, depth, sums.at(level), adds);
      },
      [&](int level) { sums.join(level); });
}

}  // namespace moegrad::kernels
