// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "framework/runtime/parallel_for.h"

namespace moegrad::kernels {

/// body(r) for each r < rows, on the threads of the rank; rows of `work` elements are cut into
/// tasks of some 4096 elements.
template <class Body>
void for_rows(std::int64_t rows, std::int64_t work, const Body& body) {
  const auto grain = std::max<std::int64_t>(1, 4096 / std::max<std::int64_t>(1, work));
  parallel_for(rows, grain, [&](std::int64_t begin, std::int64_t end) {
    for (auto r = begin; r < end; ++r) body(r);
  });
}

}  // namespace moegrad::kernels
