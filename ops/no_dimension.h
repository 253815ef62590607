// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>

namespace moegrad::ops {

/// What is no number of a dimension: sum(x, true) and max(x, 0.5), which would take dimensions 1
/// and 0, do not compile. `true` is meant for keepdim, a bound for maximum() or clamp().
template <class T>
concept NoDimension = std::same_as<T, bool> || std::floating_point<T>;

}  // namespace moegrad::ops
