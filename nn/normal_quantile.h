// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace moegrad::nn {

/// The x for which a standard normal number is below x with probability p, to a relative error of
/// about 1e-16. p in [0, 1]; minus and plus infinity at the ends.
///
/// Reference: Wichura, "Algorithm AS 241: the percentage points of the normal distribution", 1988.
double normal_quantile(double p);

/// The probability that a standard normal number is in [a, b], a <= b.
double normal_mass(double a, double b);

/// The quantiles of a standard normal number that is known to be in [a, b].
class TruncNormalQuantile {
 public:
  TruncNormalQuantile(double a, double b);

  /// The number of probability p, in [0, 1].
  double operator()(double p) const;

 private:
  bool mirrored_;  // all of [a, b] is above 0, and the others are of [-b, -a]
  double least_, most_, below_, mass_;
};

}  // namespace moegrad::nn
