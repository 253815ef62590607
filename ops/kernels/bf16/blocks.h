// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "framework/tensor/layout.h"

namespace moegrad::kernels::bf16 {

template <class Source>
void slice_rows_to_pairs(const Source* rows, std::int64_t ld, std::int64_t first_row,
                         std::int64_t num_rows, const NzBlocks& blocks, NzPairs pairs,
                         BFloat16* out);
template <class Source>
void slice_columns_to_pairs(const Source* columns, std::int64_t first_column,
                            std::int64_t num_columns, const NzBlocks& blocks, NzPairs pairs,
                            BFloat16* out);
void rows_from_pairs(const BFloat16* from, const NzBlocks& blocks, NzPairs pairs,
                     std::int64_t first_row, std::int64_t num_rows, BFloat16* rows,
                     std::int64_t ld);
void pairs_zero_padding(const NzBlocks& blocks, NzPairs pairs, BFloat16* out);

}  // namespace moegrad::kernels::bf16
