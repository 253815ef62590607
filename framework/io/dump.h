// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "framework/tensor/tensor.h"

namespace moegrad {

/// Name, shape, dtype, layout and autograd state of a tensor in one line. Below it the elements, as
/// operator<< prints them (print.h), but never more than the first and last three along each
/// dimension. Never throws.
std::string describe(const Tensor& tensor);

/// Prints describe(tensor) to stderr. Every program contains this function, for debuggers. Write
/// `tensor x` in a gdb that has read framework/gdb.py. With full debug information,
/// `call moegrad::dump(x)` works too.
void dump(const Tensor& tensor);

}  // namespace moegrad
