// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moegrad::optim {

/// Elements of a parameter that one task of parallel_for takes.
inline constexpr std::int64_t kGrain = 1 << 15;

}  // namespace moegrad::optim
