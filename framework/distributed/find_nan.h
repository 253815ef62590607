// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "framework/tensor/dtype.h"

namespace moegrad {

/// The index of the first NaN among elements of type `dtype`, those of the parts counted one after
/// the other. int64 has no NaN.
std::optional<std::int64_t> find_nan(std::span<const std::span<const std::byte>> parts,
                                     Dtype dtype);

}  // namespace moegrad
