// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/cross_entropy.h"

#include <algorithm>

#include "framework/runtime/parallel_for.h"
#include "framework/tensor/dtype.h"
#include "ops/kernels/exp.h"
#include "ops/kernels/row_reduce.h"

namespace moegrad::kernels {
namespace {

std::int64_t row_grain(std::int64_t v) {
  return std::max<std::int64_t>(1, 4096 / std::max<std::int64_t>(1, v));
}

// __restrict, because the compiler cannot see that the rows do not overlap.
template <class T, class Out>
void scaled_exp_row(T scale, const T* __restrict x, T shift, Out* __restrict y, std::int64_t v) {
  for (std::int64_t i = 0; i < v; ++i) y[i] = Out(scale * exp(x[i] - shift));
}

}  // namespace

template <class T>
void cross_entropy(const T* x, const std::int64_t* targets, std::int64_t ignore_index, T* nll,
                   T* lse, std::int64_t n, std::int64_t v) {
  parallel_for(n, row_grain(v), [&](std::int64_t begin, std::int64_t end) {
    for (auto t = begin; t < end; ++t) {
      lse[t] = nll[t] = T{0};
      if (targets[t] == ignore_index) continue;
      const T* in = x + t * v;
      const auto [largest, log_sum] = row_logsumexp_parts(in, v);
      lse[t] = largest + log_sum;
      nll[t] = log_sum - (in[targets[t]] - largest);
    }
  });
}

template <class T, class Out>
void cross_entropy_backward(T scale, const T* x, const std::int64_t* targets,
                            std::int64_t ignore_index, const T* lse, Out* dx, std::int64_t n,
                            std::int64_t v) {
  parallel_for(n, row_grain(v), [&](std::int64_t begin, std::int64_t end) {
    for (auto t = begin; t < end; ++t) {
      const T* in = x + t * v;
      Out* out = dx + t * v;
      if (targets[t] == ignore_index) {
        std::fill(out, out + v, Out(T{0}));
        continue;
      }
      const T of_target = scale * exp(in[targets[t]] - lse[t]) - scale;
      scaled_exp_row(scale, in, lse[t], out, v);
      out[targets[t]] = Out(of_target);
    }
  });
}

template void cross_entropy(const float*, const std::int64_t*, std::int64_t, float*, float*,
                            std::int64_t, std::int64_t);
template void cross_entropy(const double*, const std::int64_t*, std::int64_t, double*, double*,
                            std::int64_t, std::int64_t);
template void cross_entropy_backward(float, const float*, const std::int64_t*, std::int64_t,
                                     const float*, float*, std::int64_t, std::int64_t);
template void cross_entropy_backward(float, const float*, const std::int64_t*, std::int64_t,
                                     const float*, BFloat16*, std::int64_t, std::int64_t);
template void cross_entropy_backward(double, const double*, const std::int64_t*, std::int64_t,
                                     const double*, double*, std::int64_t, std::int64_t);

}  // namespace moegrad::kernels
