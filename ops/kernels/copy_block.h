// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace moegrad::kernels {

/// Copies `rows` rows of `bytes` bytes between two buffers whose rows are `source_stride` and
/// `target_stride` bytes apart.
inline void copy_block(const std::byte* source, std::int64_t source_stride, std::byte* target,
                       std::int64_t target_stride, std::int64_t rows, std::int64_t bytes) {
  if (bytes == 0) return;
  for (std::int64_t i = 0; i < rows; ++i) {
    std::memcpy(target + i * target_stride, source + i * source_stride,
                static_cast<std::size_t>(bytes));
  }
}

}  // namespace moegrad::kernels
