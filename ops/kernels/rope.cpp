// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/rope.h"

#include "framework/runtime/parallel_for.h"
#include "framework/tensor/dtype.h"
#include "ops/kernels/rotate_pair.h"

namespace moegrad::kernels {
namespace {

// __restrict, because the compiler cannot see that these rows do not overlap.
template <class S, class T>
void rotate_head(const S* __restrict x, const T* __restrict cos, const T* __restrict sin,
                 T direction, S* __restrict y, std::int64_t half) {
  for (std::int64_t i = 0; i < half; ++i) {
    const auto turned = rotate_pair(T(x[i]), T(x[i + half]), cos[i], sin[i] * direction);
    y[i] = S(turned.first);
    y[i + half] = S(turned.second);
  }
}

}  // namespace

template <class S, class T>
void rope_rotate(const S* x, const T* cos, const T* sin, T direction, S* y, std::int64_t tokens,
                 std::int64_t heads, std::int64_t dim) {
  constexpr std::int64_t kTokensPerPiece = 16;
  const auto half = dim / 2;
  parallel_for(tokens, kTokensPerPiece, [&](std::int64_t begin, std::int64_t end) {
    for (auto t = begin; t < end; ++t) {
      const T* c = cos + t * half;
      const T* s = sin + t * half;
      for (std::int64_t n = 0; n < heads; ++n) {
        const auto at = (t * heads + n) * dim;
        rotate_head(x + at, c, s, direction, y + at, half);
      }
    }
  });
}

template void rope_rotate(const float*, const float*, const float*, float, float*, std::int64_t,
                          std::int64_t, std::int64_t);
template void rope_rotate(const double*, const double*, const double*, double, double*,
                          std::int64_t, std::int64_t, std::int64_t);
template void rope_rotate(const BFloat16*, const float*, const float*, float, BFloat16*,
                          std::int64_t, std::int64_t, std::int64_t);

}  // namespace moegrad::kernels
