// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/matmul_eigen.h"

#include <Eigen/Core>

namespace moegrad::kernels {

template <class T>
void matmul_eigen(const T* a, bool transpose_a, const T* b, bool transpose_b, T* c, bool accumulate,
                  std::int64_t m, std::int64_t k, std::int64_t n) {
  using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using Operand = Eigen::Map<const Matrix>;
  Eigen::Map<Matrix> out(c, m, n);
  const auto store = [&](const auto& product) {
    if (accumulate) {
      out.noalias() += product;
    } else {
      out.noalias() = product;
    }
  };
  if (transpose_a && transpose_b) {
    store(Operand(a, k, m).transpose() * Operand(b, n, k).transpose());
  } else if (transpose_a) {
    store(Operand(a, k, m).transpose() * Operand(b, k, n));
  } else if (transpose_b) {
    store(Operand(a, m, k) * Operand(b, n, k).transpose());
  } else {
    store(Operand(a, m, k) * Operand(b, k, n));
  }
}

template void matmul_eigen(const float*, bool, const float*, bool, float*, bool, std::int64_t,
                           std::int64_t, std::int64_t);
template void matmul_eigen(const double*, bool, const double*, bool, double*, bool, std::int64_t,
                           std::int64_t, std::int64_t);

}  // namespace moegrad::kernels
