// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "framework/tensor/tensor.h"

namespace moegrad::fsdp {

/// The position of one parameter in every rank's slice of the gather buffer. The parameter is seen
/// as [outer, extent, inner] and is cut along the middle; outer is 1 if dimension 0 is cut.
struct FlatEntry {
  std::int64_t outer = 1;
  std::int64_t extent = 0;
  std::int64_t inner = 1;
  std::int64_t chunk = 0;   // ceil(extent / world_size): what each rank reserves
  std::int64_t offset = 0;  // elements from the start of the slice

  std::int64_t numel() const { return outer * extent * inner; }
};

/// A parameter's shape and the dimension to cut.
struct FlatParam {
  Shape shape;
  std::int64_t dim = 0;
};

/// The flat buffer of a group, [world_size, slice]. The slice of rank r holds its part of every
/// parameter, one after the other, zero-padded to chunk. So all padding of a parameter that is cut
/// along dimension 0 comes after its last row.
struct FlatLayout {
  std::vector<FlatEntry> entries;
  std::int64_t slice_numel = 0;
  int world_size = 1;

  bool has_padding() const;
};

/// Every entry starts at a multiple of `alignment` elements of its slice. The length of a slice is
/// such a multiple, too, so the same holds in the gather buffer.
FlatLayout make_flat_layout(const std::vector<FlatParam>& params, int world_size,
                            std::int64_t alignment);

/// shape.numel() elements of a flat tensor, from element `offset` on.
Tensor flat_view(const Tensor& flat, std::int64_t offset, const Shape& shape);

}  // namespace moegrad::fsdp
