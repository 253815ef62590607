// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/kernels/few_rows_matmul.h"
#include "ops/kernels/few_steps_matmul.h"
#include "ops/kernels/matmul_tile.h"
#include "ops/kernels/transposed_matmul.h"

namespace moegrad::kernels {

// Note [Two vector widths]
// The inner loops of products are templates of the vector: with 32 bytes for every CPU that the
// build is for, with 64 bytes of floats for those that have AVX-512 as well, which is found out
// when the program runs. Chains stay what they are (Note [Matmul order]), so both give the same
// bits. product_loops_avx512.cpp alone is compiled for AVX-512 and holds nothing but these loops:
// of an inline function that other files use too the linker would keep one copy, and with that one
// a CPU without AVX-512 might meet an illegal instruction.

/// All inner loops of one vector width.
template <class T>
struct ProductLoops {
  TileSet<T> tiles;
  FewRowsLoops<T> few_rows;
  FewStepsLoops<T> few_steps;
  TransposedLoops<T> transposed;
};

/// Those of vectors of 32 bytes.
template <class T>
const ProductLoops<T>& narrow_product_loops();

/// Whether the build has loops for AVX-512 (product_loops_avx512.h) and this CPU can run them.
bool has_avx512();

/// The widest that this CPU can run.
template <class T>
const ProductLoops<T>& product_loops();

}  // namespace moegrad::kernels
