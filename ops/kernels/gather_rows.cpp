// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/gather_rows.h"

#include <algorithm>
#include <cstring>

#include "framework/runtime/parallel_for.h"

namespace moegrad::kernels {

void gather_rows(const std::byte* table, const std::int64_t* indices, std::byte* out,
                 std::int64_t n, std::int64_t row_bytes) {
  if (row_bytes == 0) return;
  const auto grain = std::max<std::int64_t>(1, 65536 / row_bytes);
  parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = begin; i < end; ++i) {
      std::memcpy(out + i * row_bytes, table + indices[i] * row_bytes,
                  static_cast<std::size_t>(row_bytes));
    }
  });
}

// Threads divide the columns, not the rows, so that additions into an element keep the order of i.
template <class T>
void scatter_add_rows(const T* rows, const std::int64_t* indices, T* table, std::int64_t n,
                      std::int64_t width) {
  constexpr std::int64_t kColumns = 256;
  parallel_for(width, kColumns, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = 0; i < n; ++i) {
      const T* in = rows + i * width;
      T* out = table + indices[i] * width;
      for (auto j = begin; j < end; ++j) out[j] += in[j];
    }
  });
}

template void scatter_add_rows(const float*, const std::int64_t*, float*, std::int64_t,
                               std::int64_t);
template void scatter_add_rows(const double*, const std::int64_t*, double*, std::int64_t,
                               std::int64_t);

}  // namespace moegrad::kernels
