// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moegrad::kernels {

/// y[r, :] = (x[r, :] - m) * rstd[r] * w + b,  m = mean(x[r, :]),
/// rstd[r] = 1 / sqrt(mean((x[r, :] - m)^2) + eps);  x, y [rows, d]. Also writes the means in two
/// parts [rows, 2], the second being what the first is off by.
/// w or b may be null.
template <class T>
void layer_norm(const T* x, const T* w, const T* b, T* y, T* mean, T* rstd, std::int64_t rows,
                std::int64_t d, T eps);

/// With n = (x - m) * rstd and g = dy * w:  dx = rstd * (g - mean(g) - n * mean(g n)).
/// Writes dy * n into `scaled`, whose sum over rows is dw. dx or scaled may be null.
template <class T>
void layer_norm_backward(const T* dy, const T* x, const T* w, const T* mean, const T* rstd, T* dx,
                         T* scaled, std::int64_t rows, std::int64_t d);

}  // namespace moegrad::kernels
