// SPDX-License-Identifier: Apache-2.0
#pragma once

// Instantiated by both files that are compiled for one vector width: Note [Two vector widths].

#include "ops/kernels/few_rows_loops.h"
#include "ops/kernels/few_steps_loops.h"
#include "ops/kernels/matmul_tile_loops.h"
#include "ops/kernels/product_loops.h"
#include "ops/kernels/transposed_loops.h"

namespace moegrad::kernels {

template <class T, class V>
inline constexpr ProductLoops<T> kProductLoops = {
    matmul_tile_loops::tile_set<T, V>(), few_rows_loops::loops<T, V>(),
    few_steps_loops::loops<T, V>(), transposed_loops::loops<T, V>()};

}  // namespace moegrad::kernels
