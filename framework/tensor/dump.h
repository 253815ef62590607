// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "framework/tensor/tensor.h"

namespace moegrad {

/// Name, shape, dtype, layout and autograd state of a tensor in one line, and below it the elements
/// as they are printed by NumPy: along each dimension at most the first and last three. Of a
/// FRACTAL_NZ tensor the elements in row-major order are shown. Never throws.
std::string describe(const Tensor& tensor);

/// Prints describe(tensor) to stderr. Every program has it, to be called in a debugger: `tensor x`
/// in a gdb that has read framework/gdb.py; with full debug information also `call
/// moegrad::dump(x)`.
void dump(const Tensor& tensor);

}  // namespace moegrad
