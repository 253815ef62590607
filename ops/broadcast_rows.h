// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "framework/runtime/parallel_for.h"
#include "framework/tensor/tensor.h"
#include "ops/broadcast.h"

namespace moegrad::ops {

/// N contiguous operands that repeat to one shape, as rows of their result. Dimensions that all of
/// them walk with even steps are merged, so that rows are as long as possible; within a row an
/// operand's step is 0 or 1.
template <std::size_t kOperands>
class BroadcastRows {
 public:
  using Offsets = std::array<std::int64_t, kOperands>;

  BroadcastRows(const std::array<const Tensor*, kOperands>& operands, const Shape& output) {
    std::array<Shape, kOperands> wide;
    for (std::size_t k = 0; k < kOperands; ++k) wide[k] = broadcast_strides(*operands[k], output);
    for (std::int64_t i = 0; i < output.ndim(); ++i) {
      if (output[i] == 1) continue;
      bool merges = shape_.ndim() > 0;
      for (std::size_t k = 0; k < kOperands && merges; ++k) {
        merges = strides_[k][-1] == wide[k][i] * output[i];
      }
      if (merges) {
        shape_[-1] *= output[i];
      } else {
        shape_.push_back(output[i]);
      }
      for (std::size_t k = 0; k < kOperands; ++k) {
        if (merges) {
          strides_[k][-1] = wide[k][i];
        } else {
          strides_[k].push_back(wide[k][i]);
        }
      }
    }
    if (shape_.ndim() == 0) {
      shape_ = {1};
      strides_.fill({0});
    }
  }

  /// Calls body(begin, n, offsets) for runs of the result's elements [begin, begin + n), each
  /// within a row; offsets[k] is where operand k's run begins.
  template <class Body>
  void for_each_run(const Body& body) const {
    constexpr std::int64_t kGrain = 16384;
    const auto width = shape_[-1];
    parallel_for(shape_.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      while (begin < end) {
        const auto row = begin / width, column = begin % width;
        const auto n = std::min(end - begin, width - column);
        Offsets offsets;
        for (std::size_t k = 0; k < kOperands; ++k) {
          offsets[k] = row_offset(strides_[k], row) + column * step(k);
        }
        body(begin, n, offsets);
        begin += n;
      }
    });
  }

  /// From one element of a run to the next, in operand k: 0 or 1.
  std::int64_t step(std::size_t k) const { return strides_[k][-1]; }

 private:
  std::int64_t row_offset(const Shape& strides, std::int64_t row) const {
    std::int64_t sum = 0;
    for (std::int64_t i = shape_.ndim() - 2; i >= 0; --i) {
      sum += row % shape_[i] * strides[i];
      row /= shape_[i];
    }
    return sum;
  }

  Shape shape_;
  std::array<Shape, kOperands> strides_;
};

}  // namespace moegrad::ops
