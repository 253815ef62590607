// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace moegrad::kernels {

/// out[i, :] = table[indices[i], :] for i < n, rows of `row_bytes` bytes of any type.
void gather_rows(const std::byte* table, const std::int64_t* indices, std::byte* out,
                 std::int64_t n, std::int64_t row_bytes);

/// table[indices[i], :] += rows[i, :] for i < n, in ascending i; rows of `width` elements.
template <class T>
void scatter_add_rows(const T* rows, const std::int64_t* indices, T* table, std::int64_t n,
                      std::int64_t width);

}  // namespace moegrad::kernels
