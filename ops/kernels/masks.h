// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moegrad::kernels {

enum class CompareOp : std::uint8_t {
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
};

/// y[i] = a[i * a_step] op b[i * b_step] for i < n; steps are 0 or 1.
template <class T>
void compare(CompareOp op, const T* a, std::int64_t a_step, const T* b, std::int64_t b_step,
             bool* y, std::int64_t n);

/// y[i] = condition[i * step] ? a[i * a_step] : b[i * b_step] for i < n; steps are 0 or 1.
template <class T>
void where(const bool* condition, std::int64_t step, const T* a, std::int64_t a_step, const T* b,
           std::int64_t b_step, T* y, std::int64_t n);

}  // namespace moegrad::kernels
