// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "framework/tensor/shape.h"

namespace moegrad::fsdp {

/// Rows [begin, end) of a dimension.
struct RowRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
};

/// Rows that `rank` of `world_size` holds of `rows`, as torch.chunk cuts them: ceil-sized chunks,
/// the last ones shorter or empty.
RowRange shard_rows(std::int64_t rows, int world_size, int rank);

/// Where one parameter [rows, ...] lies in every rank's slice of the gather buffer.
struct FlatEntry {
  std::int64_t rows = 0;
  std::int64_t row_numel = 0;
  std::int64_t chunk_rows = 0;  // ceil(rows / world_size): what each rank reserves
  std::int64_t offset = 0;      // elements from the start of the slice

  std::int64_t numel() const { return rows * row_numel; }
};

/// The flat buffer of a group, [world_size, slice]: rank r's slice holds its rows of every
/// parameter, one after the other, zero-padded to chunk_rows. All padding of a parameter therefore
/// lies behind its last row.
struct FlatLayout {
  std::vector<FlatEntry> entries;
  std::int64_t slice_numel = 0;
  int world_size = 1;

  bool has_padding() const;
};

/// Every entry starts at a multiple of `alignment` elements of its slice, and slices are that long
/// too, so the same holds in the gather buffer.
FlatLayout make_flat_layout(const std::vector<Shape>& shapes, int world_size,
                            std::int64_t alignment);

}  // namespace moegrad::fsdp
