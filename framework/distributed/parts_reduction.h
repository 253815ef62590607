// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "framework/distributed/collective_call.h"
#include "framework/distributed/parts_cursor.h"

namespace moegrad {

/// output [count] = reduction of the next `count` elements of each input, one input per rank, along
/// the tree of Note [Reduction order]. Advances the inputs. `output` may be in an input. `scratch`
/// grows once; reuse it.
void reduce_parts(std::span<PartsCursor> inputs, std::byte* output, std::int64_t count, Dtype dtype,
                  ReduceOp op, std::vector<std::byte>& scratch);

}  // namespace moegrad
