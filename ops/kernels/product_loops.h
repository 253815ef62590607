// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/kernels/few_rows_matmul.h"
#include "ops/kernels/few_steps_matmul.h"
#include "ops/kernels/matmul_tile.h"
#include "ops/kernels/transposed_matmul.h"

namespace moegrad::kernels {

// Note [Two vector widths]
// The inner loops of products are templates of the vector. Vectors of 32 bytes are for every CPU
// that the build supports. Vectors of 64 bytes of floats are for CPUs that also have AVX-512; the
// program detects that when it runs. The chains are the same (Note [Matmul order]), so both widths
// give the same bits. Only product_loops_avx512.cpp and fma_chains_avx512.cpp are compiled for
// AVX-512, and they contain only such loops. If an inline function were used in them and in other
// files, the linker would keep one copy, and a CPU without AVX-512 might execute an illegal
// instruction in that copy.

/// All inner loops of one vector width.
template <class T>
struct ProductLoops {
  TileSet<T> tiles;
  FewRowsLoops<T> few_rows;
  FewStepsLoops<T> few_steps;
  TransposedLoops<T> transposed;
};

/// The loops for vectors of 32 bytes.
template <class T>
const ProductLoops<T>& narrow_product_loops();

/// Whether the rank's kernels have vectors of 64 bytes of floats.
bool uses_avx512();

/// The loops of the rank's kernels (RankContext::kernels()).
template <class T>
const ProductLoops<T>& product_loops();

}  // namespace moegrad::kernels
