// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/bf16/blocks.h"

namespace moegrad::kernels::bf16 {

template <class Source>
void slice_rows_to_pairs(const Source* rows, std::int64_t ld, std::int64_t first_row,
                         std::int64_t num_rows, const NzBlocks& blocks, NzPairs pairs,
                         BFloat16* out) {
  for (std::int64_t i = 0; i < num_rows; ++i) {
    const auto row = first_row + i;
    for (std::int64_t j = 0; j < blocks.n; ++j) {
      out[row / blocks.k * nz_numel(blocks.k, blocks.n, Dtype::kBFloat16) +
          nz_offset(row % blocks.k, j, blocks, pairs)] =
          BFloat16(static_cast<float>(rows[i * ld + j]));
    }
  }
}
template <class Source>
void slice_columns_to_pairs(const Source* columns, std::int64_t first_column,
                            std::int64_t num_columns, const NzBlocks& blocks, NzPairs pairs,
                            BFloat16* out) {
  for (std::int64_t row = 0; row < blocks.batch * blocks.k; ++row) {
    for (std::int64_t j = 0; j < num_columns; ++j) {
      out[row / blocks.k * nz_numel(blocks.k, blocks.n, Dtype::kBFloat16) +
          nz_offset(row % blocks.k, first_column + j, blocks, pairs)] =
          BFloat16(static_cast<float>(columns[row * num_columns + j]));
    }
  }
}
void rows_from_pairs(const BFloat16* from, const NzBlocks& blocks, NzPairs pairs,
                     std::int64_t first_row, std::int64_t num_rows, BFloat16* rows,
                     std::int64_t ld) {
  for (std::int64_t i = 0; i < num_rows; ++i) {
    const auto row = first_row + i;
    for (std::int64_t j = 0; j < blocks.n; ++j) {
      rows[i * ld + j] = from[row / blocks.k * nz_numel(blocks.k, blocks.n, Dtype::kBFloat16) +
                              nz_offset(row % blocks.k, j, blocks, pairs)];
    }
  }
}
void pairs_zero_padding(const NzBlocks& blocks, NzPairs pairs, BFloat16* out) {
  const auto k32 = round_up(blocks.k, kNzUnit), n32 = round_up(blocks.n, kNzUnit);
  const NzBlocks whole{blocks.batch, k32, n32};
  for (std::int64_t b = 0; b < blocks.batch; ++b, out += k32 * n32) {
    for (std::int64_t k = 0; k < k32; ++k) {
      for (std::int64_t n = 0; n < n32; ++n) {
        if (k >= blocks.k || n >= blocks.n) out[nz_offset(k, n, whole, pairs)] = BFloat16(0.0F);
      }
    }
  }
}
template void slice_rows_to_pairs(const float*, std::int64_t, std::int64_t, std::int64_t,
                                  const NzBlocks&, NzPairs, BFloat16*);
template void slice_rows_to_pairs(const BFloat16*, std::int64_t, std::int64_t, std::int64_t,
                                  const NzBlocks&, NzPairs, BFloat16*);
template void slice_columns_to_pairs(const float*, std::int64_t, std::int64_t, const NzBlocks&,
                                     NzPairs, BFloat16*);
template void slice_columns_to_pairs(const BFloat16*, std::int64_t, std::int64_t, const NzBlocks&,
                                     NzPairs, BFloat16*);

}  // namespace moegrad::kernels::bf16
