// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "framework/runtime/random.h"

namespace moegrad::kernels {

/// y[r, c] = x[r, c] / (1 - p) if word c % 4 of draw ids[r] * ceil(width / 4) + c / 4 is at least
/// p 2^32, else 0;  x, y [rows, width].
template <class T>
void dropout(const T* x, const std::int64_t* ids, const Random& random, double p, T* y,
             std::int64_t rows, std::int64_t width);

/// y[r, c] = x[r, c] (1 + noise (2 w / 2^32 - 1)) with the same word w;  x, y [rows, width].
template <class T>
void jitter(const T* x, const std::int64_t* ids, const Random& random, double noise, T* y,
            std::int64_t rows, std::int64_t width);

/// dropout() for y[q, k] with word ids[k] % 4 of draw ids[q] 2^32 + ids[k] / 4;  x, y [n, n].
template <class T>
void dropout_pairs(const T* x, const std::int64_t* ids, const Random& random, double p, T* y,
                   std::int64_t n);

}  // namespace moegrad::kernels
