// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "framework/distributed/shard_spec.h"
#include "framework/tensor/box.h"
#include "framework/tensor/tensor.h"

namespace moegrad {

/// Shape of the shard that `spec` describes.
inline Shape shard_shape(const ShardSpec& spec) {
  Shape shape = spec.global_shape;
  shape[spec.dim] = spec.end - spec.begin;
  return shape;
}

/// What `tensor` holds of its parameter: the part that its ShardSpec says, or all of it.
inline Box shard_box(const Tensor& tensor) {
  Box box = whole_box(tensor.shape());
  if (const auto& spec = tensor.shard_spec()) box.begin[spec->dim] = spec->begin;
  return box;
}

/// Where the elements of a shard lie in the whole tensor, both row-major: in `count` runs of
/// `length` neighbours. Run k begins at element k * length of the shard, and at element
/// first + k * stride of the whole. A shard of dimension 0 is one run.
struct ShardRuns {
  explicit ShardRuns(const ShardSpec& spec) {
    std::int64_t inner = 1;
    for (std::int64_t i = spec.dim + 1; i < spec.global_shape.ndim(); ++i) {
      inner *= spec.global_shape[i];
    }
    for (std::int64_t i = 0; i < spec.dim; ++i) count *= spec.global_shape[i];
    length = (spec.end - spec.begin) * inner;
    first = spec.begin * inner;
    stride = spec.global_shape[spec.dim] * inner;
  }

  /// The index in the whole tensor of the shard's element `i`.
  std::int64_t index_in_whole(std::int64_t i) const {
    return first + i / length * stride + i % length;
  }

  std::int64_t count = 1;
  std::int64_t length = 0;
  std::int64_t first = 0;
  std::int64_t stride = 0;
};

/// The shard's elements of a tensor of spec.global_shape, as a strided view without graph.
inline Tensor shard_view(const Tensor& whole, const ShardSpec& spec) {
  return Tensor::narrow(whole, spec.dim, spec.begin, spec.end - spec.begin);
}

}  // namespace moegrad
