// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moegrad::kernels {

/// kBytes bytes of T: 32 are eight floats or four doubles. Loads and stores need no alignment.
/// stream(p), which writes past the caches where the CPU can, needs 32 bytes (see finish_streams).
///
/// fma(a, b, c) = a * b + c. It is rounded once with AVX2 and NEON, and twice on the portable path
/// of other CPUs, where a correctly rounded fma would be a library call per element. So results
/// have the same bits with AVX2 and NEON, but others on the portable path. larger(a, b) = a > b ? a
/// : b and smaller(a, b) = a < b ? a : b, so both are b if either is NaN.
///
/// Eight floats also have what transposes need. Their halves are elements 0 to 3 and 4 to 7:
///
///     load_halves(p, q)  p[0 : 4], q[0 : 4]
///     low(a, b)          a0 b0 a1 b1 of each half
///     high(a, b)         a2 b2 a3 b3 of each half
///     low_pairs(a, b)    a0 a1 b0 b1 of each half
///     high_pairs(a, b)   a2 a3 b2 b3 of each half
///     store_half<h>(p)   p[0 : 4] = half h
///     store_pair<i>(p)   p[0 : 2] = elements 2 i and 2 i + 1
///
/// what products of bfloat16 need, whose words are pairs of them:
///
///     load_upper(p)      the upper halves of eight words, as floats
///     load_lower(p)      the lower halves
///
/// and what exp() needs: power_of_two(x) = 2^n for x = 1.5 * 2^23 + n, -127 < n < 128.
template <class T, int kBytes = 32>
struct Vec;

}  // namespace moegrad::kernels

// One of the three defines Vec<T, 32>; kFusesMultiplyAdd, which is whether fma() is rounded once;
// accumulate(sum, a, b), which is one step of a chain, sum = fma(a, b, sum); and finish_streams(),
// which makes earlier writes of stream() visible to other threads before later writes.
#if defined(__AVX2__) && defined(__FMA__)
#include "ops/kernels/simd_avx.h"
#elif defined(__aarch64__)
#include "ops/kernels/simd_neon.h"
#else
#include "ops/kernels/simd_portable.h"
#endif
