// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moegrad::optim {

/// The coefficients and the number of steps of orthogonalize().
inline constexpr double kNewtonSchulz[] = {3.4445, -4.7750, 2.0315};
inline constexpr int kNewtonSchulzSteps = 5;

/// Brings the singular values of `matrix` [rows, columns], row-major, near 1 and keeps its singular
/// vectors, in place: X = X / max(|X|, eps) with the Frobenius norm |X|, then five times
///
///     A = X X^T,    X = a X + (b A + c A^2) X      (of the transposed matrix if rows > columns)
///
/// which maps each singular value s to a s + b s^3 + c s^5. The values do not converge to 1; they
/// stay between about 0.7 and 1.2 unless one is tiny. The same bits with any number of threads.
///
/// Reference: Jordan et al., "Muon", 2024, https://kellerjordan.github.io/posts/muon
template <class T>
void orthogonalize(T* matrix, std::int64_t rows, std::int64_t columns, double eps);

}  // namespace moegrad::optim
