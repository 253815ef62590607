// SPDX-License-Identifier: Apache-2.0
#pragma once

// Included by simd.h, which says what is what.

#include <immintrin.h>

#include <cstdint>

namespace moegrad::kernels {

inline constexpr bool kFusesMultiplyAdd = true;

template <>
struct Vec<float, 32> {
  static constexpr std::int64_t kLanes = 8;
  __m256 v;

  static Vec zero() { return {_mm256_setzero_ps()}; }
  static Vec broadcast(float x) { return {_mm256_set1_ps(x)}; }
  static Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
  static Vec load_upper(const float* p) {
    alignas(32) static constexpr std::uint32_t kUpper[8] = {0xffff0000U, 0xffff0000U, 0xffff0000U,
                                                            0xffff0000U, 0xffff0000U, 0xffff0000U,
                                                            0xffff0000U, 0xffff0000U};
    auto v = _mm256_loadu_ps(p);
    asm("vandps %1, %0, %0" : "+x"(v) : "m"(kUpper));  // the mask takes no register
    return {v};
  }
  static Vec load_lower(const float* p) {
    alignas(32) static constexpr std::int8_t kLower[32] = {
        -1, -1, 0, 1, -1, -1, 4, 5, -1, -1, 8, 9, -1, -1, 12, 13,
        -1, -1, 0, 1, -1, -1, 4, 5, -1, -1, 8, 9, -1, -1, 12, 13};
    auto v = _mm256_loadu_ps(p);
    asm("vpshufb %1, %0, %0" : "+x"(v) : "m"(kLower));  // a shift would take a port of FMA
    return {v};
  }
  void store(float* p) const { _mm256_storeu_ps(p, v); }
  void stream(float* p) const { _mm256_stream_ps(p, v); }
  friend Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
  friend Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
  friend Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
  friend Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
  friend Vec larger(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }
  friend Vec smaller(Vec a, Vec b) { return {_mm256_min_ps(a.v, b.v)}; }

  static Vec load_halves(const float* p, const float* q) {
    return {_mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), _mm_loadu_ps(q), 1)};
  }
  friend Vec low(Vec a, Vec b) { return {_mm256_unpacklo_ps(a.v, b.v)}; }
  friend Vec high(Vec a, Vec b) { return {_mm256_unpackhi_ps(a.v, b.v)}; }
  friend Vec low_pairs(Vec a, Vec b) { return {_mm256_shuffle_ps(a.v, b.v, 0x44)}; }
  friend Vec high_pairs(Vec a, Vec b) { return {_mm256_shuffle_ps(a.v, b.v, 0xee)}; }
  template <int kHalf>
  __m128 half() const {
    if constexpr (kHalf == 0) return _mm256_castps256_ps128(v);
    return _mm256_extractf128_ps(v, 1);
  }
  template <int kHalf>
  void store_half(float* p) const {
    _mm_storeu_ps(p, half<kHalf>());
  }
  template <int kPair>
  void store_pair(float* p) const {
    if constexpr (kPair % 2 == 0) {
      _mm_storel_pi(reinterpret_cast<__m64*>(p), half<kPair / 2>());
    } else {
      _mm_storeh_pi(reinterpret_cast<__m64*>(p), half<kPair / 2>());
    }
  }

  friend Vec power_of_two(Vec x) {
    const auto exponent = _mm256_add_epi32(_mm256_castps_si256(x.v), _mm256_set1_epi32(127));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23))};
  }
};

template <>
struct Vec<double, 32> {
  static constexpr std::int64_t kLanes = 4;
  __m256d v;

  static Vec zero() { return {_mm256_setzero_pd()}; }
  static Vec broadcast(double x) { return {_mm256_set1_pd(x)}; }
  static Vec load(const double* p) { return {_mm256_loadu_pd(p)}; }
  void store(double* p) const { _mm256_storeu_pd(p, v); }
  void stream(double* p) const { _mm256_stream_pd(p, v); }
  friend Vec operator+(Vec a, Vec b) { return {_mm256_add_pd(a.v, b.v)}; }
  friend Vec operator-(Vec a, Vec b) { return {_mm256_sub_pd(a.v, b.v)}; }
  friend Vec operator*(Vec a, Vec b) { return {_mm256_mul_pd(a.v, b.v)}; }
  friend Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_pd(a.v, b.v, c.v)}; }
  friend Vec larger(Vec a, Vec b) { return {_mm256_max_pd(a.v, b.v)}; }
};

#if defined(__AVX512F__)

/// What products need. See Note [Two vector widths].
template <>
struct Vec<float, 64> {
  static constexpr std::int64_t kLanes = 16;
  __m512 v;

  static Vec zero() { return {_mm512_setzero_ps()}; }
  static Vec broadcast(float x) { return {_mm512_set1_ps(x)}; }
  static Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static Vec load_upper(const float* p) {
    return {_mm512_castsi512_ps(
        _mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(static_cast<int>(0xffff0000U))))};
  }
  static Vec load_lower(const float* p) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16))};
  }
  void store(float* p) const { _mm512_storeu_ps(p, v); }
  /// As bfloat16, rounded as BFloat16(float) does.
  void store_rounded(std::uint16_t* p) const {
    const auto word = _mm512_castps_si512(v);
    const auto last_bit = _mm512_and_si512(_mm512_srli_epi32(word, 16), _mm512_set1_epi32(1));
    const auto larger =
        _mm512_add_epi32(word, _mm512_add_epi32(last_bit, _mm512_set1_epi32(0x7fff)));
    const auto is_nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    const auto rounded = _mm512_mask_or_epi32(larger, is_nan, word, _mm512_set1_epi32(0x400000));
    const auto halves = _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), halves);
  }
  friend Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
};

#endif

/// Written in assembly, and in this order: where g++ may choose the operands of an intrinsic (12),
/// or the order (14), it spills the accumulators of a tile to the stack.
template <class T, int kBytes>
inline void accumulate(Vec<T, kBytes>& sum, const Vec<T, kBytes>& a, const Vec<T, kBytes>& b) {
  if constexpr (sizeof(T) == 4) {
    asm volatile("vfmadd231ps %2, %1, %0" : "+v"(sum.v) : "v"(a.v), "v"(b.v));
  } else {
    asm volatile("vfmadd231pd %2, %1, %0" : "+v"(sum.v) : "v"(a.v), "v"(b.v));
  }
}

inline void finish_streams() { _mm_sfence(); }

}  // namespace moegrad::kernels
