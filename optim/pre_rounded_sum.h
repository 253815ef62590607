// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "framework/tensor/tensor.h"

namespace moegrad::optim {

/// Note [Order-independent norm]
/// The sum under a norm is exact up to a fixed rounding of each term, so it does not depend on the
/// order of the terms: the norm has the same bits for every sharding, weight orientation, number of
/// threads and number of ranks. With m = max |g| over all elements of all ranks and s the power of
/// two above m, each term x = (|g| / s)^p < 1 (p = 1 or 2) is split by pre-rounding into
///
///     a = (x + C1) - C1,   b = (x - a + C2) - C2,   c = (x - a - b + C3) - C3
///
/// multiples of 2^-22, 2^-44 and 2^-66, where C = 1.5 * 2^(52 - bits) makes the addition round
/// there. |a| <= 1 and |b|, |c| <= half the quantum before, so a, b and c are at most 2^22 quanta
/// each. They are summed as numbers of quanta, in int64, which holds those of 2^40 elements:
/// exactly, in any order, and so is an all-reduce of them. What is dropped, at most 2^-67 per term,
/// depends on the term alone, and the sum is at least 2^-p. Then norm = s (a + (b + c))^(1/p), each
/// sum being rounded to float64 once; up to 2^30 elements that changes none of them.
///
/// Reference: Demmel & Nguyen, "Parallel reproducible summation", 2015.

/// Terms that one sum can take.
constexpr std::int64_t kMaxTerms = std::int64_t{1} << 40;

/// The sums of a, b and c in quanta. Those of different elements may be added in any order.
using Bins = std::array<std::int64_t, 3>;

/// Sums |g / s|^p over tensors, for one p and one s = 2^exponent above all |g|.
class PreRoundedSum {
 public:
  /// p is 1 or 2; `magnitude`, the maximum of all |g|, is positive and finite.
  PreRoundedSum(int p, double magnitude);

  Bins bins_of(const Tensor& grad) const;
  /// The p-norm of the elements whose bins add up to `total`.
  double norm_of(const Bins& total) const;

 private:
  int p_;
  int exponent_ = 0;
};

/// The largest |g|, and 1 if there is a NaN. A maximum over the ranks can combine both.
struct Extreme {
  double magnitude = 0.0;
  double nan = 0.0;
};

Extreme extreme_of(const Tensor& grad);
Extreme max(const Extreme& a, const Extreme& b);

}  // namespace moegrad::optim
