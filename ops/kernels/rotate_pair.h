// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace moegrad::kernels {

template <class T>
struct Pair {
  T first, second;
};

/// (first, second) turned by the angle of cos, sin; by its opposite for -sin.
template <class T>
Pair<T> rotate_pair(T first, T second, T cos, T sin) {
  return {first * cos - second * sin, second * cos + first * sin};
}

}  // namespace moegrad::kernels
