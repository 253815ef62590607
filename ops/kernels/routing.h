// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

namespace moegrad::kernels {

// Tokens are [tokens, h], rows [tokens * k, h]; slot s = t * k + j is the j-th slot of token t.

/// rows[r, :] = x[slot_of_row[r] / k, :] for r < n.
template <class T>
void spread_tokens(const T* x, const std::int64_t* slot_of_row, T* rows, std::int64_t n,
                   std::int64_t k, std::int64_t h);

/// y[t, :] = sum_j rows[row_of_slot[t * k + j], :], in ascending j; of bfloat16 in float32, and
/// then rounded once.
template <class T>
void collect_tokens(const T* rows, const std::int64_t* row_of_slot, T* y, std::int64_t tokens,
                    std::int64_t k, std::int64_t h);

/// The same, of rows that lie anywhere; on the calling thread alone.
template <class T>
void collect_rows(std::span<const T* const> rows, const std::int64_t* row_of_slot, T* y,
                  std::int64_t tokens, std::int64_t k, std::int64_t h);

}  // namespace moegrad::kernels
