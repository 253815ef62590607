// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "framework/runtime/parallel_for.h"
#include "ops/kernels/add_row.h"
#include "ops/kernels/halving.h"
#include "ops/kernels/row_reduce.h"
#include "ops/kernels/write_row.h"

namespace moegrad::kernels {

// The operations on a row of d elements that rms_norm shares with the kernels that it is fused
// into. The order of operations is the same in all of them.

inline constexpr std::int64_t kRmsNormRowsPerPiece = 64;

/// 1 / sqrt(mean(x^2) + eps)
template <class X, class T>
T row_rstd(const X* x, std::int64_t d, T eps) {
  return T(1) / std::sqrt(row_dot(x, x, d) / static_cast<T>(d) + eps);
}

/// sum += grad_y * x * rstd. __restrict, because the compiler cannot see that these rows do not
/// overlap.
template <class X, class Y, class T>
void add_grad_w(const Y* __restrict grad_y, const X* __restrict x, T rstd, T* __restrict sum,
                std::int64_t d) {
  for (std::int64_t i = 0; i < d; ++i) sum[i] += T(grad_y[i]) * (T(x[i]) * rstd);
}

/// With gw = grad_y * w: the gradient of x is rstd * (gw - x * along).
template <class X, class Y, class T>
T row_along(const Y* __restrict grad_y, const X* __restrict x, const T* __restrict w, T rstd,
            std::int64_t d) {
  const T dot = row_sum_of<T>(d, [=](std::int64_t i) { return T(grad_y[i]) * w[i] * T(x[i]); });
  return dot / static_cast<T>(d) * rstd * rstd;
}

/// The gradient of x, plus grad_sum unless it is null.
template <class X, class Y, class T>
void write_grad_x(const T* __restrict grad_sum, const Y* __restrict grad_y, const X* __restrict x,
                  const T* __restrict w, T rstd, T along, X* __restrict grad_x, std::int64_t d) {
  const auto grad = [=](std::int64_t i) { return (T(grad_y[i]) * w[i] - T(x[i]) * along) * rstd; };
  if (grad_sum == nullptr) {
    write_row(grad_x, d, grad);
  } else {
    write_row(grad_x, d, [=](std::int64_t i) { return grad_sum[i] + grad(i); });
  }
}

/// What a row of the backward does: its part of grad_w is added to sum, and grad_x is written,
/// unless they are null.
template <class X, class Y, class T>
void row_backward(const T* grad_sum, const Y* grad_y, const X* x, const T* w, T rstd, X* grad_x,
                  T* sum, std::int64_t d) {
  // Before the other sum, which is independent of it and runs while this one is joined.
  const T along = grad_x != nullptr ? row_along(grad_y, x, w, rstd, d) : T{0};
  if (sum != nullptr) add_grad_w(grad_y, x, rstd, sum, d);
  if (grad_x != nullptr) write_grad_x(grad_sum, grad_y, x, w, rstd, along, grad_x, d);
}

/// Calls row(n, sum) for each row of [tokens, heads, d]. The row adds its part of the weight's
/// gradient to sum [d]. The sums of a head over tokens are halved, then heads are halved down to
/// one (Note [Sums by halving]): heads are the outermost sum, so ranks that divide them have
/// subtrees. The parts lie in partial [heads, count_parts(tokens), d]; grad_w [d] gets the whole.
/// If partial is null, sum is null and grad_w is unused.
template <class T, class Row>
void for_gradient_rows(T* partial, T* grad_w, std::int64_t tokens, std::int64_t heads,
                       std::int64_t d, const Row& row) {
  const auto parts = count_parts(tokens);
  parallel_for(parts, 1, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = begin; i < end; ++i) {
      const auto part = part_at(tokens, i);
      const auto sum_of = [&](std::int64_t head) {
        return partial == nullptr ? nullptr : partial + (head * parts + i) * d;
      };
      for (std::int64_t h = 0; partial != nullptr && h < heads; ++h)
        std::fill_n(sum_of(h), d, T(0));
      for (auto t = part.begin; t < part.begin + part.terms; ++t) {
        for (std::int64_t h = 0; h < heads; ++h) row(t * heads + h, sum_of(h));
      }
    }
  });
  if (partial == nullptr) return;
  const auto join = [&](std::int64_t to, std::int64_t from) {
    add_row(partial + from * d, partial + to * d, d);
  };
  for (std::int64_t h = 0; h < heads; ++h) {
    join_parts(h * parts, tokens, kChainTerms, kHalvingUnit, join);
  }
  join_parts(0, heads, 1, 1,
             [&](std::int64_t to, std::int64_t from) { join(to * parts, from * parts); });
  if (heads == 0) {
    std::fill_n(grad_w, d, T(0));
  } else {
    std::copy_n(partial, d, grad_w);
  }
}

}  // namespace moegrad::kernels
