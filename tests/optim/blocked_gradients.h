// SPDX-License-Identifier: Apache-2.0
#pragma once

// Gradients of a stacked parameter, some blocks of which have none in some steps.

#include <cstdint>

#include "framework/tensor/fill.h"
#include "tests/testing.h"

namespace moegrad::test {

constexpr std::int64_t kBlocks = 5;

/// Block 0 never has one, the last always; the others come and go.
inline bool block_has_gradient(int step, std::int64_t block) {
  if (block == 0 || block == kBlocks - 1) return block != 0;
  return (3 * step + 2 * block) % 7 < 3;
}

/// Rows [begin, end) of a matrix, copied.
inline Tensor rows_of(const Tensor& matrix, std::int64_t begin, std::int64_t end) {
  const auto columns = matrix.dim(1);
  return clone(
      Tensor::as_strided(matrix.detach(), {end - begin, columns}, {columns, 1}, begin * columns));
}

/// Random; zeros in blocks without a gradient, and in all but one element of every third block.
inline Tensor blocked_gradient(const Shape& shape, int step, Dtype dtype = Dtype::kFloat64) {
  Tensor grad = randn(shape, 100 + static_cast<std::uint64_t>(step), dtype);
  const auto size = grad.numel() / kBlocks;
  dispatch_floating(dtype, [&]<class T>() {
    const auto values = grad.mutable_data<T>();
    for (std::int64_t i = 0; i < grad.numel(); ++i) {
      const auto block = i / size;
      const bool sparse = (block + step) % 3 == 0 && i % size != size - 1;
      if (sparse || !block_has_gradient(step, block)) values[static_cast<std::size_t>(i)] = T{0};
    }
  });
  return grad;
}

}  // namespace moegrad::test
