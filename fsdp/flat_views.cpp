// SPDX-License-Identifier: Apache-2.0
#include "fsdp/flat_views.h"

namespace moegrad::fsdp {

std::span<const std::byte> bytes_of(const Tensor& tensor) {
  return {tensor.storage().data(), static_cast<std::size_t>(tensor.storage().bytes())};
}

std::span<std::byte> writable_bytes_of(Tensor& tensor) {
  return {tensor.storage().data(), static_cast<std::size_t>(tensor.storage().bytes())};
}

Tensor flat_view(const Tensor& flat, std::int64_t offset, const Shape& shape) {
  return Tensor::as_strided(flat, shape, row_major_strides(shape), offset);
}

Tensor shard_view(const Tensor& tensor, std::int64_t dim, int world_size, int rank) {
  const auto range = shard_range(tensor.dim(dim), world_size, rank);
  Shape shape = tensor.shape();
  shape[dim] = range.size();
  // An empty part may begin one element past the end.
  const auto begin = range.size() == 0 ? 0 : range.begin;
  return Tensor::as_strided(tensor, shape, tensor.strides(),
                            tensor.offset() + begin * tensor.strides()[dim]);
}

}  // namespace moegrad::fsdp
