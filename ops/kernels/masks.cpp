// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/masks.h"

#include "framework/tensor/dtype.h"

namespace moegrad::kernels {
namespace {

template <class T, class F>
void compare_with(const F& f, const T* a, std::int64_t a_step, const T* b, std::int64_t b_step,
                  bool* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = f(a[i * a_step], b[i * b_step]);
}

}  // namespace

template <class T>
void compare(CompareOp op, const T* a, std::int64_t a_step, const T* b, std::int64_t b_step,
             bool* y, std::int64_t n) {
  switch (op) {
    case CompareOp::kEqual:
      return compare_with([](T p, T q) { return p == q; }, a, a_step, b, b_step, y, n);
    case CompareOp::kNotEqual:
      return compare_with([](T p, T q) { return p != q; }, a, a_step, b, b_step, y, n);
    case CompareOp::kLess:
      return compare_with([](T p, T q) { return p < q; }, a, a_step, b, b_step, y, n);
    case CompareOp::kLessEqual:
      return compare_with([](T p, T q) { return p <= q; }, a, a_step, b, b_step, y, n);
    case CompareOp::kGreater:
      return compare_with([](T p, T q) { return p > q; }, a, a_step, b, b_step, y, n);
    case CompareOp::kGreaterEqual:
      return compare_with([](T p, T q) { return p >= q; }, a, a_step, b, b_step, y, n);
  }
}

template <class T>
void where(const bool* condition, std::int64_t step, const T* a, std::int64_t a_step, const T* b,
           std::int64_t b_step, T* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    y[i] = condition[i * step] ? a[i * a_step] : b[i * b_step];
  }
}

#define MOEGRAD_INSTANTIATE(T)                                                                   \
  template void where(const bool*, std::int64_t, const T*, std::int64_t, const T*, std::int64_t, \
                      T*, std::int64_t);
MOEGRAD_INSTANTIATE(float)
MOEGRAD_INSTANTIATE(double)
MOEGRAD_INSTANTIATE(BFloat16)
MOEGRAD_INSTANTIATE(std::int64_t)
MOEGRAD_INSTANTIATE(bool)
#undef MOEGRAD_INSTANTIATE

template void compare(CompareOp, const float*, std::int64_t, const float*, std::int64_t, bool*,
                      std::int64_t);
template void compare(CompareOp, const double*, std::int64_t, const double*, std::int64_t, bool*,
                      std::int64_t);
template void compare(CompareOp, const std::int64_t*, std::int64_t, const std::int64_t*,
                      std::int64_t, bool*, std::int64_t);

}  // namespace moegrad::kernels
