// SPDX-License-Identifier: Apache-2.0
#pragma once

// Experts stacked in one parameter, in either orientation, and their matrices apart.

#include "framework/tensor/fill.h"
#include "optim/matrix_copies.h"
#include "tests/testing.h"

namespace moegrad::test {

constexpr std::int64_t kExperts = 3, kOut = 4, kIn = 5;

/// Gate and up, [kOut, kIn] each.
inline StackedMatrices gate_up(bool transposed) {
  return {.blocks = kExperts, .parts = 2, .transposed = transposed};
}
inline Shape stacked_shape(bool transposed) {
  return transposed ? Shape{kExperts * kIn, 2 * kOut} : Shape{kExperts * 2 * kOut, kIn};
}

/// Matrices [kOut, kIn], one of each expert's gate and up after the other, of one dtype.
inline TensorList random_matrices(std::uint64_t seed, Dtype dtype) {
  TensorList matrices;
  for (std::int64_t i = 0; i < 2 * kExperts; ++i) {
    matrices.push_back(randn({kOut, kIn}, seed + static_cast<std::uint64_t>(i), dtype));
  }
  return matrices;
}

inline Tensor stack(const TensorList& matrices, bool transposed) {
  const auto shape = stacked_shape(transposed);
  Tensor stacked = Tensor::zeros(shape, matrices[0].dtype());
  dispatch_floating(stacked.dtype(), [&]<class T>() {
    for (std::int64_t i = 0; i < std::ssize(matrices); ++i) {
      optim::put_matrix(stored_matrix(gate_up(transposed), shape, i),
                        matrices[static_cast<std::size_t>(i)].data<T>().data(),
                        stacked.mutable_data<T>().data());
    }
  });
  return stacked;
}

}  // namespace moegrad::test
