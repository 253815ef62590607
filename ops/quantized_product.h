// SPDX-License-Identifier: Apache-2.0
#pragma once

// Products of int8, without the tape.
//
// Note [int8 products]
// An int8 is a bfloat16, too, and a float32 adds 1,024 products of two without rounding: none of
// the sums is larger than 2^24. So the product of int8 matrices is that of bfloat16, at the speed
// of the CPU's fastest unit, for runs of 1,024 terms. The runs, and then the ranks, are added in
// int32. Nothing is rounded but the result, once, so that no bit depends on the kernel, on the
// number of ranks or on their parts.

#include <cstdint>
#include <vector>

#include "framework/tensor/tensor.h"
#include "ops/grouped_products.h"

namespace moegrad::ops {

/// The most terms whose sum an int32 always holds.
constexpr std::int64_t kMostQuantizedTerms = (std::int64_t{1} << 17) - 1;

/// The right operand of a product, packed once for all of its rows.
class QuantizedMatrix {
 public:
  /// matrix: int8 [k, n]
  explicit QuantizedMatrix(const Tensor& matrix);

  /// sums = x matrix   x: int8 [rows, k]   sums: int32 [rows, n], contiguous
  void multiply(const Tensor& x, Tensor& sums) const;

 private:
  std::vector<StoredMatrix> runs_;
};

/// y = (sums + bias) scale, rounded once, in the dtype of scale, float32 or bfloat16
///
/// sums: int32 [rows, n]   bias: int32 [n] or undefined   scale: [1] or [n]   y: [rows, n]
Tensor dequantized(const Tensor& sums, const Tensor& bias, const Tensor& scale);

}  // namespace moegrad::ops
