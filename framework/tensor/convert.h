// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/tensor/tensor.h"

namespace moegrad {

/// Converts a leaf and its gradient to `dtype` in place: all handles of the tensor see the new
/// elements. Views of the old ones, such as detach() has made, keep them. Counts as a modification
/// in place for what a Function has saved. Without bytes (the meta device) the tensor stays so.
///
/// Error unless it is a leaf, LayoutError unless it is ND.
void convert_(Tensor& leaf, Dtype dtype);

}  // namespace moegrad
