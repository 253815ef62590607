// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moegrad::kernels {

/// x [outer, n, inner], n > 0: indices [outer, inner] of the largest or smallest elements; the
/// lowest of several. NaN is taken before every number.
template <class T>
void arg_extreme(const T* x, bool largest, std::int64_t* indices, std::int64_t outer,
                 std::int64_t n, std::int64_t inner);

/// x [outer, n, inner]: indices [outer, k, inner] of the first k elements in ascending or
/// descending order, equal ones by their index; k <= n. NaN counts as larger than every number.
/// `workspace` has outer * n * inner elements.
template <class T>
void arg_sort(const T* x, std::int64_t k, bool descending, std::int64_t* indices,
              std::int64_t* workspace, std::int64_t outer, std::int64_t n, std::int64_t inner);

}  // namespace moegrad::kernels
