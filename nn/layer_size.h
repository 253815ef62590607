// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "framework/runtime/error.h"

namespace moegrad::nn::detail {

/// `size`; ValueError unless it is at least 1, as it is not in a Config that leaves it out, and
/// below 2^31, so that a product of two does not overflow.
inline std::int64_t layer_size(std::string_view layer, std::string_view name, std::int64_t size) {
  constexpr std::int64_t kLimit = std::int64_t{1} << 31;
  check<ValueError>(1 <= size && size < kLimit, layer, ": ", name, " must be in [1, 2^31), got ",
                    size);
  return size;
}

}  // namespace moegrad::nn::detail
