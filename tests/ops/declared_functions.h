// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace moegrad::test {

/// A function that a header declares in a namespace.
struct DeclaredFunction {
  std::string scope;       // "moegrad::ops"
  std::string name;        // "add", "operator+"
  std::string parameters;  // types without const, & and std::, as in "Tensor, int64, bool"

  friend bool operator==(const DeclaredFunction&, const DeclaredFunction&) = default;
};

/// Reads C++ as far as this takes: comments, literals, directives, bodies and classes are passed
/// over, and what is left at the level of a namespace is a function if it has parentheses.
std::vector<DeclaredFunction> declared_functions(const std::string& source);

}  // namespace moegrad::test
