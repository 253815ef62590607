// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moegrad::kernels {

/// sums[i] = product[i], a whole number that int32 holds; with `adds`, sums[i] += product[i].
void add_whole(const float* product, std::int32_t* sums, std::int64_t n, bool adds);

/// y[i, j] = (sums[i, j] + bias[j]) scale[j * scale_step], rounded once to T, float or BFloat16.
/// Without `bias` nothing is added.
template <class T>
void dequantize(const std::int32_t* sums, const std::int32_t* bias, const T* scale,
                std::int64_t scale_step, T* y, std::int64_t rows, std::int64_t columns);

}  // namespace moegrad::kernels
