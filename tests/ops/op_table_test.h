// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the tests over the op table have in common.

#include <cctype>
#include <string>

#include "tests/ops/op_table.h"
#include "tests/testing.h"

namespace moegrad::test {

/// "add_Tensor_double", "operator_plus_Tensor"
inline std::string test_name(const ::testing::TestParamInfo<OpEntry>& info) {
  std::string name;
  for (const char c : info.param.key()) {
    if (std::isalnum(static_cast<unsigned char>(c)) || c == '_') {
      name += c;
    } else if (c == '+' || c == '*' || c == '/' || c == '-') {
      name += c == '+' ? "_plus" : c == '*' ? "_times" : c == '/' ? "_over" : "_minus";
    } else if (c == '(' || c == ',') {
      name += '_';
    }
  }
  return name;
}

/// How far a result may be from its reference: 1e-12 in float64, 1e-5 in float32 and 2^-8 in
/// bfloat16, of the element and of the mean size of all elements, since sums of many cancel. Exact
/// for other types, in which no arithmetic is done, and for bfloat16 that is only moved.
inline double tolerance_of(const OpEntry& entry, Dtype dtype) {
  const bool moves = entry.dtypes.size() == kAllDtypes.size();
  if (dtype == Dtype::kBFloat16) return moves ? 0.0 : 0x1p-8;
  return dtype == Dtype::kFloat64 ? 1e-12 : dtype == Dtype::kFloat32 ? 1e-5 : 0.0;
}

/// |got - want| <= tolerance (|want| + mean |want|) for every element; NaN where NaN is wanted.
::testing::AssertionResult close_to(const Array& got, const Array& want, double tolerance);

/// The same defined tensors with the same bits.
::testing::AssertionResult same_bits(const TensorList& got, const TensorList& want);
::testing::AssertionResult same_bits(const Outcome& got, const Outcome& want);

/// How a view lies in its storage.
enum class Within {
  kShifted,   // contiguous, at an offset
  kReversed,  // the first dimension varies fastest
  kGaps,      // every second element of the last dimension
};
/// The elements of contiguous `x` as a view of a larger storage full of NaN (of absurd indices).
Tensor view_within_poison(const Tensor& x, Within within);

/// What `call` throws, as "ShapeError: its message"; "nothing" if it returns.
std::string raised_by(const std::function<void()>& call);

}  // namespace moegrad::test
