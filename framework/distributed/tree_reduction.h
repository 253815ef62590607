// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "framework/distributed/process_group.h"

namespace moegrad {

/// output [count] = reduction of inputs[0..R) [count] along the tree of Note [Reduction order] in
/// process_group.h. A bfloat16 node widens both children, combines, and rounds. kMax keeps NaN.
///
/// `output` may be one of the inputs. `scratch` grows once; reuse it.
void reduce_tree(std::span<const std::byte* const> inputs, std::byte* output, std::int64_t count,
                 Dtype dtype, ReduceOp op, std::vector<std::byte>& scratch);

}  // namespace moegrad
