// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "framework/runtime/math/elementary.h"
#include "framework/tensor/dtype.h"
#include "ops/kernels/exp.h"
#include "ops/kernels/halving.h"

namespace moegrad::kernels {

// Reductions of one row in an order that depends only on its length. Element i goes to running
// value i % 16; sixteen such values let the loop vectorise, and a fixed tree joins them. Sums
// restart every kSumBlock elements and the partial sums are added in double, so that float32 rows
// of any length keep their digits.

inline constexpr std::int64_t kLanes = 16;
/// After how many terms sums restart.
inline constexpr std::int64_t kSumBlock = 1024;

template <class T, class Combine>
T join_lanes(std::array<T, kLanes>& lanes, const Combine& combine) {
  for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::size_t j = 0; j < half; ++j) lanes[j] = combine(lanes[j], lanes[j + half]);
  }
  return lanes[0];
}

/// Sum over begin <= i < end of term(i), in one number for each lane.
template <class T, class Term>
T lanes_sum_of(std::int64_t begin, std::int64_t end, const Term& term) {
  std::array<T, kLanes> lanes{};
  auto i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    for (std::int64_t j = 0; j < kLanes; ++j) lanes[static_cast<std::size_t>(j)] += term(i + j);
  }
  for (std::size_t j = 0; i < end; ++i, ++j) lanes[j] += term(i);
  return join_lanes(lanes, [](T a, T b) { return a + b; });
}

/// Sum over i < n of term(i).
template <class T, class Term>
T row_sum_of(std::int64_t n, const Term& term) {
  double total = 0;
  for (std::int64_t begin = 0; begin < n; begin += kSumBlock) {
    total += static_cast<double>(lanes_sum_of<T>(begin, std::min(n, begin + kSumBlock), term));
  }
  return static_cast<T>(total);
}

/// The sum of part(begin, n) over parts of at most kChainTerms terms; halves are added in double.
template <class Part>
double halved_row_sum_by_parts(std::int64_t begin, std::int64_t n, const Part& part) {
  if (n <= kChainTerms) return static_cast<double>(part(begin, n));
  const auto left = left_half(n);
  const auto of_left = halved_row_sum_by_parts(begin, left, part);
  return of_left + halved_row_sum_by_parts(begin + left, n - left, part);
}

/// The same sum in an order that lets ranks divide the row (Note [Sums by halving]): parts of at
/// most 128 terms in lanes, halves added in double. The sums of ranks are added in double, too.
template <class T, class Term>
double halved_row_sum_of(std::int64_t begin, std::int64_t n, const Term& term) {
  return halved_row_sum_by_parts(begin, n, [&](std::int64_t from, std::int64_t terms) {
    return lanes_sum_of<T>(from, from + terms, term);
  });
}

template <class T>
double halved_row_sum(const T* x, std::int64_t n) {
  return halved_row_sum_of<T>(0, n, [&](std::int64_t i) { return x[i]; });
}

template <class T>
double halved_row_dot(const T* x, const T* y, std::int64_t n) {
  return halved_row_sum_of<T>(0, n, [&](std::int64_t i) { return x[i] * y[i]; });
}

template <class T>
T row_sum(const T* x, std::int64_t n) {
  return row_sum_of<T>(n, [&](std::int64_t i) { return x[i]; });
}

template <class S>
ArithmeticOf<S> row_dot(const S* x, const S* y, std::int64_t n) {
  using T = ArithmeticOf<S>;
  return row_sum_of<T>(n, [&](std::int64_t i) { return T(x[i]) * T(y[i]); });
}

/// The largest element; -inf for an empty row. NaN elements are skipped.
template <class T>
T row_max(const T* x, std::int64_t n) {
  const auto greater = [](T a, T b) { return a > b ? a : b; };
  std::array<T, kLanes> lanes;
  lanes.fill(-std::numeric_limits<T>::infinity());
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::int64_t j = 0; j < kLanes; ++j) {
      auto& lane = lanes[static_cast<std::size_t>(j)];
      lane = greater(x[i + j], lane);
    }
  }
  for (std::size_t j = 0; i < n; ++i, ++j) lanes[j] = greater(x[i], lanes[j]);
  return join_lanes(lanes, greater);
}

/// log sum_i exp(x[i]) = largest + log_sum; added up, a large first part costs digits of the
/// second.
template <class T>
struct LogSumExp {
  T largest;  // 0 if the whole row is -inf
  T log_sum;
};

/// What is subtracted before exp: the largest element, or 0 for a row of -inf.
template <class T>
T finite_shift(T largest) {
  return largest == -std::numeric_limits<T>::infinity() ? T{0} : largest;
}

/// sum_i exp(x[i] - shift)
template <class T>
double row_sum_of_exp(const T* x, T shift, std::int64_t n) {
  return halved_row_sum_of<T>(0, n, [&](std::int64_t i) { return exp(x[i] - shift); });
}

template <class T>
LogSumExp<T> row_logsumexp_parts(const T* x, std::int64_t n) {
  const T largest = finite_shift(row_max(x, n));
  return {largest, math::log(static_cast<T>(row_sum_of_exp(x, largest, n)))};
}

/// log sum_i exp(x[i]); -inf for a row of -inf.
template <class T>
T row_logsumexp(const T* x, std::int64_t n) {
  const auto [largest, log_sum] = row_logsumexp_parts(x, n);
  return largest + log_sum;
}

}  // namespace moegrad::kernels
