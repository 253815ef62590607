// SPDX-License-Identifier: Apache-2.0
#pragma once

// Opt-in: needs Eigen. For your own Functions and for reference implementations.
//
// Some of Eigen 3.4's vector loops are not what std:: computes. With AVX or SSE, exp(-infinity) is
// 2.9e-39 and not 0, so masked scores keep a weight; logistic() falls here and there between -9 and
// -5; and a sum of bfloat16 stops growing between 256 and 8192, so cast to float first. Square
// roots are exact: the targets define EIGEN_FAST_MATH=0, without which 4 of 10 are one unit off,
// and those of denormal numbers are 0. A build without CMake must define it, too.

#include <Eigen/Core>

#include "framework/tensor/tensor.h"

namespace moegrad {

template <class T>
using EigenMatrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

namespace detail {

inline void check_as_eigen(const Tensor& tensor) {
  check<LayoutError>(tensor.layout() == Layout::kND,
                     "as_eigen: the tensor must be row-major ND, got FRACTAL_NZ");
  check<ShapeError>(tensor.ndim() <= 2, "as_eigen: the tensor must have at most 2 dimensions, got ",
                    tensor.shape());
  check<LayoutError>(tensor.is_contiguous(), "as_eigen: the tensor must be contiguous, got shape ",
                     tensor.shape(), " with strides ", tensor.strides());
}

inline Eigen::Index eigen_size(const Tensor& tensor, std::int64_t dim) {
  return dim < tensor.ndim() ? tensor.dim(dim) : 1;
}

}  // namespace detail

/// The tensor's own memory as an Eigen matrix: [m, n] as it is, [n] as a column n x 1, [] as 1 x 1.
/// On a Tensor that is not const the matrix can be written, so the call counts as a modification in
/// place. In backward, keep unpacked tensors in const Tensors.
///
/// Throws LayoutError (FRACTAL_NZ, not contiguous), ShapeError (more than 2 dimensions), DtypeError
/// (T is not its dtype).
template <class T>
Eigen::Map<const EigenMatrix<T>> as_eigen(const Tensor& tensor) {
  detail::check_as_eigen(tensor);
  return {tensor.data<T>().data(), detail::eigen_size(tensor, 0), detail::eigen_size(tensor, 1)};
}
template <class T>
Eigen::Map<EigenMatrix<T>> as_eigen(Tensor& tensor) {
  detail::check_as_eigen(tensor);
  return {tensor.mutable_data<T>().data(), detail::eigen_size(tensor, 0),
          detail::eigen_size(tensor, 1)};
}
/// Deleted: a temporary may own the memory.
template <class T>
void as_eigen(const Tensor&& tensor) = delete;

}  // namespace moegrad
