// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "framework/tensor/tensor.h"
#include "ops/no_dimension.h"

namespace moegrad::ops {

// For float32 or float64 (DtypeError). Without dimensions the result has shape []. Those that are
// given are removed, or have size 1 with `keepdim`. A dimension out of range, or one named twice,
// is a ShapeError, and so are empty braces. The order of additions depends on the shape only.

Tensor sum(const Tensor& a);
Tensor sum(const Tensor& a, std::int64_t dim, bool keepdim = false);
Tensor sum(const Tensor& a, const std::vector<std::int64_t>& dims, bool keepdim = false);
Tensor sum(const Tensor& a, std::initializer_list<std::int64_t> dims, bool keepdim = false);
template <NoDimension T>
Tensor sum(const Tensor& a, T no_dim, bool keepdim = false) = delete;
/// The mean of no elements is NaN.
Tensor mean(const Tensor& a);
Tensor mean(const Tensor& a, std::int64_t dim, bool keepdim = false);
Tensor mean(const Tensor& a, const std::vector<std::int64_t>& dims, bool keepdim = false);
Tensor mean(const Tensor& a, std::initializer_list<std::int64_t> dims, bool keepdim = false);
template <NoDimension T>
Tensor mean(const Tensor& a, T no_dim, bool keepdim = false) = delete;

}  // namespace moegrad::ops
