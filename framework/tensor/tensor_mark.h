// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/tensor/tensor.h"

namespace moegrad {

/// A fact about a tensor that the code above it keeps with it. Who sets it defines a constant,
/// which is known by its address. detach() keeps the marks of a tensor, clone() does not.
struct TensorMark {};

void set_mark(const Tensor& tensor, const TensorMark& mark, bool on = true);
bool has_mark(const Tensor& tensor, const TensorMark& mark);

/// The tensor is the whole parameter that a module had before a part took its place. The module no
/// longer has it, and training it would change nothing.
inline constexpr TensorMark kReplaced{};

}  // namespace moegrad
