// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#endif

namespace moegrad::kernels {

/// kBytes bytes of T: 32 are eight floats or four doubles. Loads and stores need no alignment.
/// stream(p), which writes past the caches, needs 32 bytes (see finish_streams).
///
/// fma(a, b, c) = a * b + c. It is rounded once with AVX2, and twice on the portable path, where a
/// correctly rounded fma would be a library call per element. So results have the same bits within
/// one build, but not between the two paths. larger(a, b) = a > b ? a : b, so it is b if either is
/// NaN.
template <class T, int kBytes = 32>
struct Vec;

#if defined(__AVX2__) && defined(__FMA__)

template <>
struct Vec<float, 32> {
  static constexpr std::int64_t kLanes = 8;
  __m256 v;

  static Vec zero() { return {_mm256_setzero_ps()}; }
  static Vec broadcast(float x) { return {_mm256_set1_ps(x)}; }
  static Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
  void store(float* p) const { _mm256_storeu_ps(p, v); }
  void stream(float* p) const { _mm256_stream_ps(p, v); }
  friend Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
  friend Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
  friend Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
  friend Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
  friend Vec larger(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }
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

#else

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
};

#endif

#if defined(__AVX512F__)

/// What products need. See Note [Two vector widths].
template <>
struct Vec<float, 64> {
  static constexpr std::int64_t kLanes = 16;
  __m512 v;

  static Vec zero() { return {_mm512_setzero_ps()}; }
  static Vec broadcast(float x) { return {_mm512_set1_ps(x)}; }
  static Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
  void store(float* p) const { _mm512_storeu_ps(p, v); }
  friend Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
};

#endif

/// One step of a chain, sum = fma(a, b, sum). If the CPU has instructions for it, it is written in
/// assembly: if GCC 12 may choose the operands of an intrinsic, it spills the accumulators of a
/// tile to the stack.
template <class T, int kBytes>
inline void accumulate(Vec<T, kBytes>& sum, const Vec<T, kBytes>& a, const Vec<T, kBytes>& b) {
#if defined(__AVX2__) && defined(__FMA__)
  if constexpr (sizeof(T) == 4) {
    asm("vfmadd231ps %2, %1, %0" : "+v"(sum.v) : "v"(a.v), "v"(b.v));
  } else {
    asm("vfmadd231pd %2, %1, %0" : "+v"(sum.v) : "v"(a.v), "v"(b.v));
  }
#else
  sum = fma(a, b, sum);
#endif
}

/// Makes earlier writes of stream() visible to other threads before later writes.
inline void finish_streams() {
#if defined(__AVX2__) && defined(__FMA__)
  _mm_sfence();
#endif
}

}  // namespace moegrad::kernels
