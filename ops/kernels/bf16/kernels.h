// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/runtime/cpu_kernels.h"
#include "ops/kernels/bf16/tile.h"

namespace moegrad::kernels::bf16 {

/// The loops of `kernels`, which are among available_cpu_kernels().
const Loops& loops_of(CpuKernels kernels);

/// The loops of a file for one kind of vectors; null if the build has none.
const Loops* narrow_loops();
const Loops* avx512_loops();
const Loops* avx512_bf16_loops();
const Loops* amx_loops();

}  // namespace moegrad::kernels::bf16
