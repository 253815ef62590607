// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the named functions add, sub, ... and the operators +, -, ... have in common.

#include <string>

#include "tests/ops/op_table.h"

namespace moegrad::test {

using BinaryFunction = Tensor (*)(const Tensor&, const Tensor&);
using NumberFunction = Tensor (*)(const Tensor&, double);
using Formula = double (*)(double, double);

/// The dtypes that a function takes, in the words of its errors.
std::string taken_by(const std::string& function_name);

/// `function_name` is what errors call the function; `saves` says whether backward reads the
/// operands.
OpEntry binary_entry(const std::string& op, const std::string& parameters,
                     const std::string& function_name, BinaryFunction function, Formula formula,
                     bool saves);

/// The tensor comes first, whatever the order of the op's own parameters.
OpEntry number_entry(const std::string& op, const std::string& parameters,
                     const std::string& function_name, NumberFunction function, Formula formula,
                     bool saves);

}  // namespace moegrad::test
