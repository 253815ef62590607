// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "framework/tensor/dtype.h"
#include "ops/kernels/bf16/order.h"
#include "ops/kernels/bf16/tile.h"
#include "ops/kernels/matmul_kernel.h"

namespace moegrad::kernels::bf16 {

/// C [m, n] = A [m, k] B [k, n], or with `adds`, C + A B. The rows of C are `c_stride` elements
/// apart. C is float32, or bfloat16, to which the whole sum is rounded once; then it cannot be
/// added to. The NZ forms of B have the pair order of the kernel that reads them: with round_up(x,
/// 32) for the rows of a matrix of x rows,
///
///     kNz            the blocks of B (Note [FRACTAL_NZ of bfloat16]); stride = round_up(k, 32)
///     kNzTransposed  the blocks of its transpose [n, k], of which panels are made as they are of
///                    kColumns; stride = round_up(n, 32)
struct Problem {
  LeftOperand<BFloat16> a;
  RightOperand<BFloat16> b;
  float* c = nullptr;
  BFloat16* rounded_c = nullptr;
  std::int64_t c_stride = 0;
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  bool adds = false;
};

/// The most rows and columns of a block.
inline constexpr std::int64_t kBlockRows = 256, kBlockColumns = 512;

/// Computes C[i0 : i0 + rows, j0 : j0 + columns] in the order of Note [bfloat16 products]; j0 is a
/// multiple of kNzBlock. Packs into scratch of the calling thread, whose mode for denormals is
/// restored.
void multiply_block(const Problem& problem, std::int64_t i0, std::int64_t rows, std::int64_t j0,
                    std::int64_t columns, const Loops& loops);

/// Writes columns [j0, j1) of B [k, n] to the form kNz, in `panels` of round_up(k, 32) *
/// round_up(n, 16) elements for all of B; j0 is a multiple of kNzBlock, and so is j1, or it is n.
/// For all other forms of B.
void pack_right(const RightOperand<BFloat16>& b, std::int64_t k, std::int64_t n, std::int64_t j0,
                std::int64_t j1, PairOrder order, std::byte* panels);

}  // namespace moegrad::kernels::bf16
