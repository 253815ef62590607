// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "framework/tensor/tensor.h"
#include "ops/no_dimension.h"

namespace moegrad::ops {

// Along one dimension of a float32 or float64 tensor (DtypeError). A negative dimension counts from
// the end, and one out of range is a ShapeError. In all but cumsum the dimension is removed, or has
// size 1 with `keepdim`. The order of additions depends on the shape only.

/// sum over i of (a_i - mean)^2 / max(0, n - correction), n the size of the dimension. With the
/// usual correction of 1 it estimates the variance of what `a` was drawn from; a single element
/// then gives NaN.
Tensor var(const Tensor& a, std::int64_t dim, double correction = 1, bool keepdim = false);
template <NoDimension T>
Tensor var(const Tensor& a, T no_dim, double correction = 1, bool keepdim = false) = delete;
/// The variance of all elements, with shape [].
Tensor var(const Tensor& a);
/// Its square root, the standard deviation, with gradient 0 where it is 0.
Tensor std(const Tensor& a, std::int64_t dim, double correction = 1, bool keepdim = false);
template <NoDimension T>
Tensor std(const Tensor& a, T no_dim, double correction = 1, bool keepdim = false) = delete;
Tensor std(const Tensor& a);
/// log sum over i of exp(a_i), without overflow; of no elements, -infinity
Tensor logsumexp(const Tensor& a, std::int64_t dim, bool keepdim = false);
template <NoDimension T>
Tensor logsumexp(const Tensor& a, T no_dim, bool keepdim = false) = delete;
/// y_k = sum over i <= k of a_i
Tensor cumsum(const Tensor& a, std::int64_t dim);
template <NoDimension T>
Tensor cumsum(const Tensor& a, T no_dim) = delete;

}  // namespace moegrad::ops
