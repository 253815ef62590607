// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>

#include "framework/tensor/tensor.h"

namespace moegrad {

/// Error if `input`, which is input number `position` of operation `op`, is a shard of a parameter.
///
/// Note [Shards are no operands]
/// fully_shard replaces each parameter by a shard. A call of the module, model(x), gathers the
/// whole parameters first. Its forward(x) alone does not, and would compute with the shards: it
/// would end with a misleading error about shapes, or give wrong results if the shapes happen to
/// fit. So no operation on the tape takes a shard that is split over more than one rank. To compute
/// with the elements of a shard, for example a norm, use its detach(). The part of a parameter that
/// another kind of parallelism has cut is an operand: its module computes with that part.
void check_whole(std::string_view op, const Tensor& input, std::size_t position);

}  // namespace moegrad
