// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/kernels/pack.h"

namespace moegrad::kernels {

template <class T>
struct ProductLoops;

/// A [m, k] with A[i, p] = data[i * row_stride + p * k_stride]; one of the strides is 1. The same
/// kernel serves X (forward, dX: k_stride 1) and X^T (dW: row_stride 1).
template <class T>
struct LeftOperand {
  const T* data = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t k_stride = 1;
};

/// C [m, n] = A [m, k] B [k, n], or with `adds`, C + A B. The rows of C are `c_stride` elements
/// apart.
template <class T>
struct MatmulProblem {
  LeftOperand<T> a;
  RightOperand<T> b;
  T* c = nullptr;
  std::int64_t c_stride = 0;
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  bool adds = false;
};

// Note [Matmul blocks]
// A task computes a block of C of at most most_block_rows rows, all columns or a multiple of
// kGroupColumns. It walks the reduction by subtrees of at most kCacheDepth steps; sums of such
// blocks wait in scratch for their right halves (Note [Sums by halving]). The rows of A are packed
// once into strips of six or eight, interleaved as the tile reads them; they stay in the second
// cache level. Packing also removes the power-of-two distance between rows: the first level could
// hold only a few such rows at a time. B is read in groups of panels. In NZ it is read in place (as
// its transpose: Note [Transposed product]); otherwise a group is packed in the order in which it
// is stored. All strips use a panel while it is in cache, and meanwhile the next data is
// prefetched.
//
// A reduction of a few steps (the weight gradient of an expert with few tokens) spends its time on
// writing C. There groups are wider and a strip goes through the whole group, so that rows are
// written in runs of kilobytes.
//
// Method: K. Goto, R. van de Geijn, Anatomy of High-Performance Matrix Multiplication, 2008.

inline constexpr std::int64_t kBlockRows = 264;
inline constexpr std::int64_t kGroupColumns = 128;

/// The most rows of a block with a reduction of length k. With a short reduction, more rows fit.
template <class T>
constexpr std::int64_t most_block_rows(std::int64_t k) {
  constexpr auto kSteps = std::int64_t{1024 / sizeof(T)};
  return kBlockRows * std::clamp<std::int64_t>(kSteps / std::max<std::int64_t>(k, 1), 1, 4);
}

/// Computes C[i0 : i0 + rows, j0 : j0 + columns] in the order of Note [Matmul order];
/// rows <= most_block_rows<T>(problem.k), j0 a multiple of kGroupColumns. Packs into scratch of the
/// calling thread. The bits do not depend on `loops`, whose default is the widest of this CPU.
template <class T>
void matmul_block(const MatmulProblem<T>& problem, std::int64_t i0, std::int64_t rows,
                  std::int64_t j0, std::int64_t columns);
template <class T>
void matmul_block(const MatmulProblem<T>& problem, std::int64_t i0, std::int64_t rows,
                  std::int64_t j0, std::int64_t columns, const ProductLoops<T>& loops);

}  // namespace moegrad::kernels
