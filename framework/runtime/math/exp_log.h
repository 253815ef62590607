// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/runtime/math/double_double.h"

namespace moegrad::math {

// Both phases of exp and log, for functions that are computed from them. See Note [Elementary
// functions].

/// e^x for |x| < 800, with a relative error below 2^-100 and below 2^-66; value is in [1, 2) or
/// very close. The quick one's low is larger than half a unit of the last place of high.
Scaled exp_accurate(const DoubleDouble& x);
Scaled exp_quick(const DoubleDouble& x);

/// log(high + low) for a finite number above 0, with a relative error below 2^-99, and below
/// log_error(). The quick one's low is larger than half a unit of the last place of high.
DoubleDouble log_accurate(const DoubleDouble& x);
DoubleDouble log_quick(const DoubleDouble& x);

/// A bound on the error of a value of log_quick: the last bits of z^2 / 2, where z < 2^-7 is the
/// argument of the series, and near 1 the logarithm itself.
constexpr double log_error(const DoubleDouble& log) {
  const double square = log.high * log.high;
  return 0x1p-51 * (square < 0x1p-14 ? square : 0x1p-14) + 0x1p-68 * std::abs(log.high);
}

}  // namespace moegrad::math
