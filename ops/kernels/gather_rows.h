// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace moegrad::kernels {

/// out[i, :] = table[indices[i], :] for i < n, rows of `row_bytes` bytes of any type.
void gather_rows(const std::byte* table, const std::int64_t* indices, std::byte* out,
                 std::int64_t n, std::int64_t row_bytes);

/// table[indices[i], :] += rows[i, :] for i < n, in ascending i; rows of `width` elements.
template <class T>
void scatter_add_rows(const T* rows, const std::int64_t* indices, T* table, std::int64_t n,
                      std::int64_t width);

/// table[v - first, :] = sum of rows[i, :] over the positions i < n of index v, for each v that
/// `by_index` has; by_index lists positions, those of an index side by side and in ascending order.
/// Sums over [0, n) are halved (Note [Sums by halving]); a part that has no position of v adds
/// nothing. Rows of bfloat16 are summed in float32.
template <class Row, class T>
void sum_rows_by_index(const Row* rows, std::int64_t n, const std::int64_t* indices,
                       std::span<const std::int64_t> by_index, std::int64_t first, T* table,
                       std::int64_t width);

}  // namespace moegrad::kernels
