// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/dequantize.h"

#include <bit>
#include <cmath>

#include "framework/tensor/dtype.h"

namespace moegrad::kernels {
namespace {

// whole * scale, exact or one of the two doubles next to it, that whose last bit is set. So what is
// left to round cannot become a tie that the product is not (Boldo and Melquiond, "Emulation of
// FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008). Without a branch,
// so that loops are vectorised.
double rounded_to_odd(double whole, double scale) {
  const double near = whole * scale;
  const double rest = std::fma(whole, scale, -near);
  const auto bits = std::bit_cast<std::int64_t>(near);
  const std::int64_t away = (rest < 0) == (near < 0) ? 1 : -1;
  const std::int64_t inexact = rest < 0 || rest > 0 ? 1 : 0;
  return std::bit_cast<double>(bits + ((inexact & ~bits) != 0 ? away : 0));
}

}  // namespace

void add_whole(const float* product, std::int32_t* sums, std::int64_t n, bool adds) {
  if (adds) {
    for (std::int64_t i = 0; i < n; ++i) sums[i] += static_cast<std::int32_t>(product[i]);
  } else {
    for (std::int64_t i = 0; i < n; ++i) sums[i] = static_cast<std::int32_t>(product[i]);
  }
}

template <class T>
void dequantize(const std::int32_t* sums, const std::int32_t* bias, const T* scale,
                std::int64_t scale_step, T* y, std::int64_t rows, std::int64_t columns) {
  for (std::int64_t i = 0; i < rows; ++i, sums += columns, y += columns) {
    for (std::int64_t j = 0; j < columns; ++j) {
      const double added = bias == nullptr ? 0 : bias[j];
      const auto by = static_cast<double>(scale[j * scale_step]);
      y[j] = static_cast<T>(rounded_to_odd(sums[j] + added, by));
    }
  }
}

template void dequantize(const std::int32_t*, const std::int32_t*, const float*, std::int64_t,
                         float*, std::int64_t, std::int64_t);
template void dequantize(const std::int32_t*, const std::int32_t*, const BFloat16*, std::int64_t,
                         BFloat16*, std::int64_t, std::int64_t);

}  // namespace moegrad::kernels
