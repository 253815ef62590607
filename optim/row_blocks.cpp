// SPDX-License-Identifier: Apache-2.0
#include "optim/row_blocks.h"

#include <algorithm>

#include "framework/distributed/shard_spec.h"

namespace moegrad::optim {

std::vector<BlockRange> block_ranges(const Tensor& parameter, std::int64_t blocks) {
  if (blocks == 1) return {{0, parameter.numel()}};  // for every shape
  const auto& spec = parameter.shard_spec();
  const Shape& whole = spec != nullptr ? spec->global_shape : parameter.shape();
  const auto first = spec != nullptr && spec->dim == 0 ? spec->begin : 0;
  const auto rows = parameter.dim(0);
  const auto rows_per_block = whole[0] / blocks;
  std::int64_t row_size = 1;  // of this rank's part of a row
  for (std::int64_t i = 1; i < parameter.ndim(); ++i) row_size *= parameter.dim(i);
  std::vector<BlockRange> ranges;
  for (std::int64_t block = 0; block < blocks; ++block) {
    const auto begin = std::clamp<std::int64_t>(block * rows_per_block - first, 0, rows);
    const auto end = std::clamp<std::int64_t>((block + 1) * rows_per_block - first, 0, rows);
    ranges.push_back({begin * row_size, end * row_size});
  }
  return ranges;
}

bool has_nonzero(const Tensor& values, const BlockRange& range) {
  return dispatch_floating(values.dtype(), [&]<class T>() {
    return std::ranges::any_of(range.of(values.data<T>()), [](T value) { return value != T{0}; });
  });
}

}  // namespace moegrad::optim
