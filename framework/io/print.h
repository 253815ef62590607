// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <ostream>
#include <string>

#include "framework/tensor/tensor.h"

namespace moegrad {

/// Prints a tensor as PyTorch does, with its shape, dtype and layout:
///
///     tensor([[ 0.5000, -1.0000],
///             [ 2.2500,  3.0000]], shape=[2, 2], dtype=float32, layout=ND)
///
/// In a tensor of more than 1000 elements, only the first and last three along each dimension are
/// shown, with "..." between them. A result says what made it (grad_fn), a leaf whether it requires
/// a gradient, a shard which part of a parameter it is. The elements of a FRACTAL_NZ
/// tensor are shown in row-major order. A tensor without bytes (meta, or released) shows "...".
///
/// Numbers have four digits after the point, or as many as std::setprecision() has set, where that
/// is not 6, with which a stream begins. To compare elements exactly there is ops::equal.
std::ostream& operator<<(std::ostream& out, const Tensor& tensor);

/// The elements alone, in nested brackets. Lines after the first are indented by `indent` columns,
/// and rows are broken so that lines have at most 80 columns. A tensor of more than `threshold`
/// elements is shortened. `digits` come after the point, at most 17. The tensor must have bytes.
std::string elements_text(const Tensor& tensor, std::int64_t indent, std::int64_t threshold,
                          std::int64_t digits = 4);

}  // namespace moegrad
