// SPDX-License-Identifier: Apache-2.0
#pragma once

// Included by simd.h, which says what is what.

#include <bit>
#include <cstdint>

namespace moegrad::kernels {

inline constexpr bool kFusesMultiplyAdd = false;

template <class T>
struct Vec<T, 32> {
  static constexpr std::int64_t kLanes = 32 / static_cast<std::int64_t>(sizeof(T));
  T v[kLanes];

  template <class F>
  static Vec lanes(const F& f) {
    Vec r;
    for (std::int64_t i = 0; i < kLanes; ++i) r.v[i] = f(i);
    return r;
  }
  static Vec zero() { return broadcast(T(0)); }
  static Vec broadcast(T x) {
    return lanes([&](std::int64_t) { return x; });
  }
  static Vec load(const T* p) {
    return lanes([&](std::int64_t i) { return p[i]; });
  }
  static Vec load_upper(const float* p) {
    return lanes([&](std::int64_t i) {
      return std::bit_cast<float>(std::bit_cast<std::uint32_t>(p[i]) & 0xffff0000U);
    });
  }
  static Vec load_lower(const float* p) {
    return lanes([&](std::int64_t i) {
      return std::bit_cast<float>(std::bit_cast<std::uint32_t>(p[i]) << 16);
    });
  }
  void store(T* p) const {
    for (std::int64_t i = 0; i < kLanes; ++i) p[i] = v[i];
  }
  void stream(T* p) const { store(p); }
  friend Vec operator+(const Vec& a, const Vec& b) {
    return lanes([&](std::int64_t i) { return a.v[i] + b.v[i]; });
  }
  friend Vec operator-(const Vec& a, const Vec& b) {
    return lanes([&](std::int64_t i) { return a.v[i] - b.v[i]; });
  }
  friend Vec operator*(const Vec& a, const Vec& b) {
    return lanes([&](std::int64_t i) { return a.v[i] * b.v[i]; });
  }
  friend Vec fma(const Vec& a, const Vec& b, const Vec& c) {
    return lanes([&](std::int64_t i) { return a.v[i] * b.v[i] + c.v[i]; });
  }
  friend Vec larger(const Vec& a, const Vec& b) {
    return lanes([&](std::int64_t i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
  }
  friend Vec smaller(const Vec& a, const Vec& b) {
    return lanes([&](std::int64_t i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
  }

  static Vec load_halves(const T* p, const T* q) {
    return lanes([&](std::int64_t i) { return i < 4 ? p[i] : q[i - 4]; });
  }
  friend Vec low(const Vec& a, const Vec& b) {
    return lanes([&](std::int64_t i) { return (i % 2 == 0 ? a : b).v[i / 4 * 4 + i % 4 / 2]; });
  }
  friend Vec high(const Vec& a, const Vec& b) {
    return lanes([&](std::int64_t i) { return (i % 2 == 0 ? a : b).v[i / 4 * 4 + i % 4 / 2 + 2]; });
  }
  friend Vec low_pairs(const Vec& a, const Vec& b) {
    return lanes([&](std::int64_t i) { return (i % 4 < 2 ? a : b).v[i / 4 * 4 + i % 2]; });
  }
  friend Vec high_pairs(const Vec& a, const Vec& b) {
    return lanes([&](std::int64_t i) { return (i % 4 < 2 ? a : b).v[i / 4 * 4 + i % 2 + 2]; });
  }
  template <int kHalf>
  void store_half(T* p) const {
    for (int i = 0; i < 4; ++i) p[i] = v[4 * kHalf + i];
  }
  template <int kPair>
  void store_pair(T* p) const {
    for (int i = 0; i < 2; ++i) p[i] = v[2 * kPair + i];
  }

  friend Vec power_of_two(const Vec& x) {
    return lanes([&](std::int64_t i) {
      return std::bit_cast<T>((std::bit_cast<std::uint32_t>(x.v[i]) + 127U) << 23U);
    });
  }
};

template <class T, int kBytes>
inline void accumulate(Vec<T, kBytes>& sum, const Vec<T, kBytes>& a, const Vec<T, kBytes>& b) {
  sum = fma(a, b, sum);
}

inline void finish_streams() {}

}  // namespace moegrad::kernels
