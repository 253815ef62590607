// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace moegrad::kernels {

template <class T>
struct Pair {
  T first, second;
};

/// (first, second) rotated by the angle of cos, sin; by the opposite angle for -sin.
template <class T>
Pair<T> rotate_pair(T first, T second, T cos, T sin) {
  return {first * cos - second * sin, second * cos + first * sin};
}

}  // namespace moegrad::kernels
