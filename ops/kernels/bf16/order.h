// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "framework/tensor/layout.h"

namespace moegrad::kernels::bf16 {

// Note [bfloat16 products]
// Every element of every product of bfloat16 operands is one sum over the reduction index p, in
// float32, in the order of AMX's TDPBF16PS, which FMA and AVX512_BF16 can follow:
//
//     p is counted in units of 32, the last filled up with zeros, and halved (Note [Sums by
//     halving]) until a part has at most 256 steps. Within a part, y = 0, and for each unit
//
//         e = chain of fused multiply-adds from zero over p = 0, 2, ..., 30 of the unit
//         o = the same over p = 1, 3, ..., 31
//         y = (e + o) + y
//
//     Halves are added, left + right.
//
// Everywhere inputs that are denormal count as zero, and results that are denormal become zero:
// VDPBF16PS and TDPBF16PS cannot do otherwise. A zero keeps the sign of what was flushed. Padding
// is computed with, since x + 0 turns -0 into 0. NaN stands at the same places with every kernel;
// its payload is not promised.
//
// So the bits are the same with every kernel, and do not depend on rows, columns, threads, ranks,
// tiles or layouts. Only a portable build, which multiplies and adds with two roundings, has others
// about 2^-126: elsewhere a product of two bfloat16 is exact.

/// The steps of a unit.
inline constexpr std::int64_t kUnit = kNzUnit;
/// The most steps of a part.
inline constexpr std::int64_t kPartSteps = 256;
/// The words, pairs of bfloat16, of a unit.
inline constexpr std::int64_t kWords = kUnit / 2;

}  // namespace moegrad::kernels::bf16
