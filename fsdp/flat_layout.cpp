// SPDX-License-Identifier: Apache-2.0
#include "fsdp/flat_layout.h"

#include <algorithm>

#include "framework/tensor/layout.h"

namespace moegrad::fsdp {

RowRange shard_rows(std::int64_t rows, int world_size, int rank) {
  const auto chunk = (rows + world_size - 1) / world_size;
  return {std::min(rows, chunk * rank), std::min(rows, chunk * (rank + 1))};
}

bool FlatLayout::has_padding() const {
  std::int64_t used = 0;
  for (const auto& entry : entries) used += entry.numel();
  return used != slice_numel * world_size;
}

FlatLayout make_flat_layout(const std::vector<Shape>& shapes, int world_size,
                            std::int64_t alignment) {
  FlatLayout layout;
  layout.world_size = world_size;
  for (const auto& shape : shapes) {
    FlatEntry entry;
    entry.rows = shape[0];
    entry.row_numel = 1;
    for (std::int64_t i = 1; i < shape.ndim(); ++i) entry.row_numel *= shape[i];
    entry.chunk_rows = (entry.rows + world_size - 1) / world_size;
    entry.offset = layout.slice_numel;
    layout.slice_numel += round_up(entry.chunk_rows * entry.row_numel, alignment);
    layout.entries.push_back(entry);
  }
  return layout;
}

}  // namespace moegrad::fsdp
