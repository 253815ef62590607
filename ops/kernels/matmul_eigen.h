// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moegrad::kernels {

/// c = op(a) op(b), or c += op(a) op(b) with `accumulate`; op(a) [m, k], op(b) [k, n], c [m, n],
/// all row-major. a is stored as [k, m] with `transpose_a`, b as [n, k] with `transpose_b`. Eigen
/// allocates its packing buffers.
template <class T>
void matmul_eigen(const T* a, bool transpose_a, const T* b, bool transpose_b, T* c, bool accumulate,
                  std::int64_t m, std::int64_t k, std::int64_t n);

}  // namespace moegrad::kernels
