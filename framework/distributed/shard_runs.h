// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "framework/distributed/shard_spec.h"
#include "framework/tensor/tensor.h"

namespace moegrad {

/// Shape of the shard that `spec` describes.
inline Shape shard_shape(const ShardSpec& spec) {
  Shape shape = spec.global_shape;
  shape[spec.dim] = spec.end - spec.begin;
  return shape;
}

/// The positions of a shard's elements in the whole tensor; both are row-major. There are `count`
/// runs of `length` neighbouring elements. Run k begins at element k * length of the shard, and at
/// element first + k * stride of the whole. A shard of dimension 0 is one run.
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
  return Tensor::as_strided(whole, shard_shape(spec), whole.strides(),
                            whole.offset() + spec.begin * whole.strides()[spec.dim]);
}

}  // namespace moegrad
