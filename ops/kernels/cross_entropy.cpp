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

// sum_v (x[v] - shift)
template <class T>
double row_sum_above(const T* x, T shift, std::int64_t v) {
  return halved_row_sum_of<T>(0, v, [&](std::int64_t i) { return x[i] - shift; });
}

// The loss of token t from numbers whose common `shift` is taken off: log sum exp, the target's
// logit, and if they count, the sum of all. a + b V = 1.
template <class T>
T loss_of(const TokenLoss<T>& kind, std::int64_t t, T log_sum, T shift, T target, double of_all) {
  T loss = log_sum - kind.of_target * target;
  if (kind.of_class != 0) loss -= kind.of_class * static_cast<T>(of_all);
  const T lse = shift + log_sum;
  if (kind.z_coef != 0) loss += kind.z_coef * (lse * lse);
  return kind.weights == nullptr ? loss : kind.weights[t] * loss;
}

// __restrict, because the compiler cannot see that the rows do not overlap.
template <class T, class Out>
void scaled_exp_row(T scale, const T* __restrict x, T shift, T less, Out* __restrict y,
                    std::int64_t v) {
  for (std::int64_t i = 0; i < v; ++i) y[i] = Out(scale * exp(x[i] - shift) - less);
}

}  // namespace

template <class T>
void cross_entropy(const T* x, const std::int64_t* targets, std::int64_t ignore_index,
                   const TokenLoss<T>& kind, T* loss, T* lse, std::int64_t n, std::int64_t v) {
  parallel_for(n, row_grain(v), [&](std::int64_t begin, std::int64_t end) {
    for (auto t = begin; t < end; ++t) {
      lse[t] = loss[t] = T{0};
      if (targets[t] == ignore_index) continue;
      const T* in = x + t * v;
      const auto [largest, log_sum] = row_logsumexp_parts(in, v);
      lse[t] = largest + log_sum;
      const double of_all = kind.of_class == 0 ? 0 : row_sum_above(in, largest, v);
      loss[t] = loss_of(kind, t, log_sum, largest, in[targets[t]] - largest, of_all);
    }
  });
}

template <class T>
void cross_entropy_largest(const T* x, const std::int64_t* targets, std::int64_t ignore_index,
                           T* largest, std::int64_t n, std::int64_t v) {
  parallel_for(n, row_grain(v), [&](std::int64_t begin, std::int64_t end) {
    for (auto t = begin; t < end; ++t) {
      largest[t] = row_max(x + t * v, targets[t] == ignore_index ? 0 : v);
    }
  });
}

template <class T>
void cross_entropy_sums(const T* x, const std::int64_t* targets, std::int64_t ignore_index,
                        const T* largest, bool of_all, double* sums, std::int64_t n, std::int64_t v,
                        std::int64_t first) {
  parallel_for(n, row_grain(v), [&](std::int64_t begin, std::int64_t end) {
    for (auto t = begin; t < end; ++t) {
      double& of_target = sums[n + t];
      sums[t] = of_target = -0.0;
      if (of_all) sums[2 * n + t] = -0.0;
      if (targets[t] == ignore_index) continue;
      const T* in = x + t * v;
      const T shift = finite_shift(largest[t]);
      sums[t] = row_sum_of_exp(in, shift, v);
      const auto target = targets[t] - first;
      if (0 <= target && target < v) of_target = static_cast<double>(in[target]);
      if (of_all) sums[2 * n + t] = row_sum_above(in, shift, v);
    }
  });
}

template <class T>
void cross_entropy_join(const T* largest, const double* sums, const std::int64_t* targets,
                        std::int64_t ignore_index, const TokenLoss<T>& kind, T* loss, T* lse,
                        std::int64_t n) {
  for (std::int64_t t = 0; t < n; ++t) {
    lse[t] = loss[t] = T{0};
    if (targets[t] == ignore_index) continue;
    const T shift = finite_shift(largest[t]), log_sum = math::log(static_cast<T>(sums[t]));
    lse[t] = shift + log_sum;
    loss[t] = loss_of(kind, t, log_sum, shift, static_cast<T>(sums[n + t]) - shift,
                      kind.of_class == 0 ? 0 : sums[2 * n + t]);
  }
}

template <class T, class Out>
void cross_entropy_backward(T scale, const T* x, const std::int64_t* targets,
                            std::int64_t ignore_index, const TokenLoss<T>& kind, const T* lse,
                            Out* dx, std::int64_t n, std::int64_t v, std::int64_t first) {
  parallel_for(n, row_grain(v), [&](std::int64_t begin, std::int64_t end) {
    for (auto t = begin; t < end; ++t) {
      const T* in = x + t * v;
      Out* out = dx + t * v;
      if (targets[t] == ignore_index) {
        std::fill(out, out + v, Out(T{0}));
        continue;
      }
      const T of_token = kind.weights == nullptr ? scale : scale * kind.weights[t];
      const T of_p = kind.z_coef == 0 ? of_token : of_token * (1 + 2 * kind.z_coef * lse[t]);
      const T less = kind.of_class == 0 ? 0 : of_token * kind.of_class;  // +0 changes no bit
      const auto target = targets[t] - first;
      const bool has_target = 0 <= target && target < v;
      const T of_target =
          has_target ? of_p * exp(in[target] - lse[t]) - of_token * kind.of_target - less : T{0};
      scaled_exp_row(of_p, in, lse[t], less, out, v);
      if (has_target) out[target] = Out(of_target);
    }
  });
}

#define MOEGRAD_INSTANTIATE(T)                                                                  \
  template void cross_entropy(const T*, const std::int64_t*, std::int64_t, const TokenLoss<T>&, \
                              T*, T*, std::int64_t, std::int64_t);                              \
  template void cross_entropy_largest(const T*, const std::int64_t*, std::int64_t, T*,          \
                                      std::int64_t, std::int64_t);                              \
  template void cross_entropy_sums(const T*, const std::int64_t*, std::int64_t, const T*, bool, \
                                   double*, std::int64_t, std::int64_t, std::int64_t);          \
  template void cross_entropy_join(const T*, const double*, const std::int64_t*, std::int64_t,  \
                                   const TokenLoss<T>&, T*, T*, std::int64_t);                  \
  template void cross_entropy_backward(T, const T*, const std::int64_t*, std::int64_t,          \
                                       const TokenLoss<T>&, const T*, T*, std::int64_t,         \
                                       std::int64_t, std::int64_t);
MOEGRAD_INSTANTIATE(float)
MOEGRAD_INSTANTIATE(double)
#undef MOEGRAD_INSTANTIATE
template void cross_entropy_backward(float, const float*, const std::int64_t*, std::int64_t,
                                     const TokenLoss<float>&, const float*, BFloat16*, std::int64_t,
                                     std::int64_t, std::int64_t);

}  // namespace moegrad::kernels
