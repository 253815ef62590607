// SPDX-License-Identifier: Apache-2.0
#include "fsdp/flat_layout.h"

#include "framework/distributed/shard_spec.h"
#include "framework/tensor/layout.h"

namespace moegrad::fsdp {

bool FlatLayout::has_padding() const {
  std::int64_t used = 0;
  for (const auto& entry : entries) used += entry.numel();
  return used != slice_numel * world_size;
}

FlatLayout make_flat_layout(const std::vector<FlatParam>& params, int world_size,
                            std::int64_t alignment) {
  FlatLayout layout;
  layout.world_size = world_size;
  for (const auto& [shape, dim] : params) {
    FlatEntry entry;
    for (std::int64_t i = 0; i < dim; ++i) entry.outer *= shape[i];
    entry.extent = shape[dim];
    for (std::int64_t i = dim + 1; i < shape.ndim(); ++i) entry.inner *= shape[i];
    entry.chunk = shard_range(entry.extent, world_size, 0).size();
    entry.offset = layout.slice_numel;
    layout.slice_numel += round_up(entry.outer * entry.chunk * entry.inner, alignment);
    layout.entries.push_back(entry);
  }
  return layout;
}

Tensor flat_view(const Tensor& flat, std::int64_t offset, const Shape& shape) {
  return Tensor::as_strided(flat, shape, row_major_strides(shape), offset);
}

}  // namespace moegrad::fsdp
