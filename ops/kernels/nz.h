// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "framework/tensor/layout.h"

namespace moegrad::kernels {

// An NZ destination holds blocks.batch matrices [k, n]. Its logical rows are the rows of the
// stacked matrix [batch * k, n]. See Note [FRACTAL_NZ].

/// Writes logical rows [first_row, first_row + num_rows) of the NZ destination `out` from
/// row-major `rows`, which start `ld` elements apart, converting Source to T (bfloat16 widens to
/// float). The range may begin and end inside a matrix. Other rows and all padding stay as they
/// are. Single-threaded, but several threads may write ranges that share no row.
template <class Source, class T>
void slice_rows_to_nz(const Source* rows, std::int64_t ld, std::int64_t first_row,
                      std::int64_t num_rows, const NzBlocks& blocks, T* out);

/// Writes columns [first_column, first_column + num_columns) of every row in the same way, from
/// `columns`, which holds batch * k rows of num_columns elements.
template <class Source, class T>
void slice_columns_to_nz(const Source* columns, std::int64_t first_column, std::int64_t num_columns,
                         const NzBlocks& blocks, T* out);

/// The inverse of slice_rows_to_nz: reads logical rows [first_row, first_row + num_rows) of `nz`
/// into row-major `rows`.
template <class T>
void rows_from_nz(const T* nz, const NzBlocks& blocks, std::int64_t first_row,
                  std::int64_t num_rows, T* rows, std::int64_t ld);

/// Writes zero to the padding of `out`, the rows and columns that fill up whole blocks.
template <class T>
void nz_zero_padding(const NzBlocks& blocks, T* out);

}  // namespace moegrad::kernels
