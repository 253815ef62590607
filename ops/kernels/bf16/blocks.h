// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "framework/tensor/dtype.h"
#include "framework/tensor/layout.h"

namespace moegrad::kernels::bf16 {

// What ops/kernels/nz.h does, for blocks.batch matrices of bfloat16 [k, n] in the form `pairs`:
// Note [FRACTAL_NZ of bfloat16]. Logical rows are those of the stacked matrix [batch * k, n].

/// Writes logical rows [first_row, first_row + num_rows) of the blocks `out` from row-major `rows`,
/// which start `ld` elements apart. Source is BFloat16, or float, which is rounded as BFloat16(x)
/// is. The range may begin and end anywhere. Other rows and all padding stay as they are; several
/// threads may write ranges that share no row, though these share words.
template <class Source>
void slice_rows_to_pairs(const Source* rows, std::int64_t ld, std::int64_t first_row,
                         std::int64_t num_rows, const NzBlocks& blocks, NzPairs pairs,
                         BFloat16* out);

/// Writes columns [first_column, first_column + num_columns) of every row in the same way, from
/// `columns`, which holds batch * k rows of num_columns elements.
template <class Source>
void slice_columns_to_pairs(const Source* columns, std::int64_t first_column,
                            std::int64_t num_columns, const NzBlocks& blocks, NzPairs pairs,
                            BFloat16* out);

/// The inverse of slice_rows_to_pairs: reads logical rows [first_row, first_row + num_rows) into
/// row-major `rows`.
void rows_from_pairs(const BFloat16* packed, const NzBlocks& blocks, NzPairs pairs,
                     std::int64_t first_row, std::int64_t num_rows, BFloat16* rows,
                     std::int64_t ld);

/// Writes zero to the rows and columns that fill up `out` to multiples of 32.
void pairs_zero_padding(const NzBlocks& blocks, NzPairs pairs, BFloat16* out);

}  // namespace moegrad::kernels::bf16
