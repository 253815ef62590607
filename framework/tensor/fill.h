// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <string_view>

#include "framework/tensor/tensor.h"

namespace moegrad {

// The few element loops that the framework itself needs. They are not recorded on the tape, so they
// refuse results on the tape, and those that write also leaves that require a gradient (Error),
// unless there is a NoGradGuard.

/// Error, which begins with the op's name and ends with what to do `instead`, if `tensor` is a
/// result on the tape and the tape is on.
void check_off_tape(std::string_view op, const Tensor& tensor, std::string_view name,
                    std::string_view instead = {});

/// ValueError, which begins with the op's name, unless `value` is an element of `dtype`: a whole
/// number in [-2^63, 2^63) for int64, and so on, 0 or 1 for bool, for reals any but finite ones
/// beyond the range.
void check_element(std::string_view op, double value, Dtype dtype);

/// tensor[...] = value, ND, strided or not. ValueError as check_element().
void fill_(Tensor& tensor, double value);

/// target += source, both contiguous ND of one shape. Both are float32 or both float64, or `source`
/// is bfloat16 and `target` float32.
void add_(Tensor& target, const Tensor& source);

/// target = source elementwise, of one shape. Both may be strided, parts of one tensor, and of
/// other dtypes. LayoutError if elements of `target` share a place, as those of an expanded tensor
/// do.
void copy_(Tensor& target, const Tensor& source);

/// A contiguous copy with its own storage; NZ tensors are copied block by block. A copy of a
/// shard is a shard, here and below. ops::clone is the one with a gradient, and because this one is
/// a template, clone(x) is ops::clone where both are visible.
template <std::same_as<Tensor> T>
T clone(const T& source);

/// An uninitialised, zero or otherwise filled ND tensor with the shape and dtype of `like`.
Tensor empty_like(const Tensor& like);
Tensor zeros_like(const Tensor& like);
Tensor ones_like(const Tensor& like);
/// ValueError as check_element().
Tensor full_like(const Tensor& like, double value);
/// What arithmetic has come to, []: infinite where a floating `dtype` does not hold it, else
/// ValueError as check_element().
Tensor scalar(double value, Dtype dtype);

/// A contiguous copy in another dtype. ops::cast is the one with a gradient.
Tensor to_dtype(const Tensor& source, Dtype dtype);

/// Converts a leaf and its gradient to `dtype` in place: all handles of the tensor see the new
/// elements. Views of the old ones, such as detach() has made, keep them. Counts as a modification
/// in place for what a Function has saved. Without bytes (the meta device) the tensor stays so.
///
/// Error unless it is a leaf, LayoutError unless it is ND.
void convert_(Tensor& leaf, Dtype dtype);

}  // namespace moegrad
