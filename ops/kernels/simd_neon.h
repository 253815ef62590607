// SPDX-License-Identifier: Apache-2.0
#pragma once

// Included by simd.h, which says what is what. A Vec is two registers.

#include <arm_neon.h>

#include <cstdint>

namespace moegrad::kernels {

inline constexpr bool kFusesMultiplyAdd = true;

template <>
struct Vec<float, 32> {
  static constexpr std::int64_t kLanes = 8;
  float32x4_t v0, v1;

  static Vec broadcast(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
  static Vec zero() { return broadcast(0); }
  static Vec load(const float* p) { return load_halves(p, p + 4); }
  static Vec load_upper(const float* p) {
    const auto of_half = [](float32x4_t half) {
      return vreinterpretq_f32_u32(
          vandq_u32(vreinterpretq_u32_f32(half), vdupq_n_u32(0xffff0000U)));
    };
    return {of_half(vld1q_f32(p)), of_half(vld1q_f32(p + 4))};
  }
  static Vec load_lower(const float* p) {
    const auto of_half = [](float32x4_t half) {
      return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(half), 16));
    };
    return {of_half(vld1q_f32(p)), of_half(vld1q_f32(p + 4))};
  }
  void store(float* p) const {
    vst1q_f32(p, v0);
    vst1q_f32(p + 4, v1);
  }
  void stream(float* p) const { store(p); }
  friend Vec operator+(Vec a, Vec b) { return {vaddq_f32(a.v0, b.v0), vaddq_f32(a.v1, b.v1)}; }
  friend Vec operator-(Vec a, Vec b) { return {vsubq_f32(a.v0, b.v0), vsubq_f32(a.v1, b.v1)}; }
  friend Vec operator*(Vec a, Vec b) { return {vmulq_f32(a.v0, b.v0), vmulq_f32(a.v1, b.v1)}; }
  friend Vec fma(Vec a, Vec b, Vec c) {
    return {vfmaq_f32(c.v0, a.v0, b.v0), vfmaq_f32(c.v1, a.v1, b.v1)};
  }
  // The CPU's own maximum is NaN if either operand is.
  friend Vec larger(Vec a, Vec b) {
    return {vbslq_f32(vcgtq_f32(a.v0, b.v0), a.v0, b.v0),
            vbslq_f32(vcgtq_f32(a.v1, b.v1), a.v1, b.v1)};
  }
  friend Vec smaller(Vec a, Vec b) {
    return {vbslq_f32(vcltq_f32(a.v0, b.v0), a.v0, b.v0),
            vbslq_f32(vcltq_f32(a.v1, b.v1), a.v1, b.v1)};
  }

  static Vec load_halves(const float* p, const float* q) { return {vld1q_f32(p), vld1q_f32(q)}; }
  friend Vec low(Vec a, Vec b) { return {vzip1q_f32(a.v0, b.v0), vzip1q_f32(a.v1, b.v1)}; }
  friend Vec high(Vec a, Vec b) { return {vzip2q_f32(a.v0, b.v0), vzip2q_f32(a.v1, b.v1)}; }
  friend Vec low_pairs(Vec a, Vec b) {
    return {vcombine_f32(vget_low_f32(a.v0), vget_low_f32(b.v0)),
            vcombine_f32(vget_low_f32(a.v1), vget_low_f32(b.v1))};
  }
  friend Vec high_pairs(Vec a, Vec b) {
    return {vcombine_f32(vget_high_f32(a.v0), vget_high_f32(b.v0)),
            vcombine_f32(vget_high_f32(a.v1), vget_high_f32(b.v1))};
  }
  template <int kHalf>
  void store_half(float* p) const {
    vst1q_f32(p, kHalf == 0 ? v0 : v1);
  }
  template <int kPair>
  void store_pair(float* p) const {
    const auto half = kPair < 2 ? v0 : v1;
    vst1_f32(p, kPair % 2 == 0 ? vget_low_f32(half) : vget_high_f32(half));
  }

  friend Vec power_of_two(Vec x) {
    const auto of_half = [](float32x4_t half) {
      const auto exponent = vaddq_s32(vreinterpretq_s32_f32(half), vdupq_n_s32(127));
      return vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23));
    };
    return {of_half(x.v0), of_half(x.v1)};
  }
};

template <>
struct Vec<double, 32> {
  static constexpr std::int64_t kLanes = 4;
  float64x2_t v0, v1;

  static Vec broadcast(double x) { return {vdupq_n_f64(x), vdupq_n_f64(x)}; }
  static Vec zero() { return broadcast(0); }
  static Vec load(const double* p) { return {vld1q_f64(p), vld1q_f64(p + 2)}; }
  void store(double* p) const {
    vst1q_f64(p, v0);
    vst1q_f64(p + 2, v1);
  }
  void stream(double* p) const { store(p); }
  friend Vec operator+(Vec a, Vec b) { return {vaddq_f64(a.v0, b.v0), vaddq_f64(a.v1, b.v1)}; }
  friend Vec operator-(Vec a, Vec b) { return {vsubq_f64(a.v0, b.v0), vsubq_f64(a.v1, b.v1)}; }
  friend Vec operator*(Vec a, Vec b) { return {vmulq_f64(a.v0, b.v0), vmulq_f64(a.v1, b.v1)}; }
  friend Vec fma(Vec a, Vec b, Vec c) {
    return {vfmaq_f64(c.v0, a.v0, b.v0), vfmaq_f64(c.v1, a.v1, b.v1)};
  }
  friend Vec larger(Vec a, Vec b) {
    return {vbslq_f64(vcgtq_f64(a.v0, b.v0), a.v0, b.v0),
            vbslq_f64(vcgtq_f64(a.v1, b.v1), a.v1, b.v1)};
  }
};

/// Written in assembly: if GCC 12 may choose the operands of an intrinsic, it spills the
/// accumulators of a tile to the stack.
template <class T, int kBytes>
inline void accumulate(Vec<T, kBytes>& sum, const Vec<T, kBytes>& a, const Vec<T, kBytes>& b) {
  if constexpr (sizeof(T) == 4) {
    asm("fmla %0.4s, %1.4s, %2.4s" : "+w"(sum.v0) : "w"(a.v0), "w"(b.v0));
    asm("fmla %0.4s, %1.4s, %2.4s" : "+w"(sum.v1) : "w"(a.v1), "w"(b.v1));
  } else {
    asm("fmla %0.2d, %1.2d, %2.2d" : "+w"(sum.v0) : "w"(a.v0), "w"(b.v0));
    asm("fmla %0.2d, %1.2d, %2.2d" : "+w"(sum.v1) : "w"(a.v1), "w"(b.v1));
  }
}

inline void finish_streams() {}

}  // namespace moegrad::kernels
