// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "framework/distributed/shard_spec.h"
#include "framework/tensor/box.h"
#include "framework/tensor/tensor.h"

namespace moegrad {

/// What `tensor` holds of its parameter: the part that its ShardSpec says, or all of it.
inline Box shard_box(const Tensor& tensor) {
  const auto& spec = tensor.shard_spec();
  return spec ? spec->box : whole_box(tensor.shape());
}

/// The shape of the parameter that `tensor` is a part of, or all of.
inline const Shape& global_shape(const Tensor& tensor) {
  const auto& spec = tensor.shard_spec();
  return spec ? spec->global_shape : tensor.shape();
}

/// Where the elements of a part lie in the whole tensor, both row-major: in runs of `length`
/// neighbours. A part that is cut along dimension 0 alone is one run.
class ShardRuns {
 public:
  explicit ShardRuns(const ShardSpec& spec) {
    const auto& [begin, shape] = spec.box;
    std::int64_t inner = 1;  // elements of the whole per index of the dimension
    for (auto dim = spec.global_shape.ndim() - 1; dim >= 0; --dim) {
      first_ += begin[dim] * inner;
      add(shape[dim], inner);
      inner *= spec.global_shape[dim];
    }
  }

  std::int64_t length() const { return length_; }
  /// The index in the whole tensor of the part's element `i`.
  std::int64_t index_in_whole(std::int64_t i) const {
    auto run = i / length_;
    auto index = first_ + i % length_;
    for (const auto& [count, stride] : outer_) {
      index += run % count * stride;
      run /= count;
    }
    return index;
  }

 private:
  struct Outer {
    std::int64_t count;
    std::int64_t stride;
  };

  // A dimension outside those before. Neighbouring dimensions without a cut between them are one.
  void add(std::int64_t count, std::int64_t stride) {
    if (outer_.empty() && stride == length_) {
      length_ *= count;
    } else if (!outer_.empty() && stride == outer_.back().count * outer_.back().stride) {
      outer_.back().count *= count;
    } else {
      outer_.push_back({count, stride});
    }
  }

  std::int64_t first_ = 0;
  std::int64_t length_ = 1;
  std::vector<Outer> outer_;  // the innermost first
};

/// The elements of `whole` that `box` has, as a strided view without graph.
inline Tensor box_view(const Tensor& whole, const Box& box) {
  Tensor part = whole.detach();
  for (std::int64_t dim = 0; dim < box.shape.ndim(); ++dim) {
    part = Tensor::narrow(part, dim, box.begin[dim], box.shape[dim]);
  }
  return part;
}

/// The shard's elements of a tensor of spec.global_shape, as a strided view without graph.
inline Tensor shard_view(const Tensor& whole, const ShardSpec& spec) {
  return box_view(whole, spec.box);
}

}  // namespace moegrad
