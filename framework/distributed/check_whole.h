// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>

#include "framework/tensor/tensor.h"

namespace moegrad {

/// Error if `input`, number `position` of operation `op`, is a shard of a parameter.
///
/// Note [Shards are no operands]
/// fully_shard leaves a shard in the place of each parameter. Calling the module, model(x), gathers
/// the whole parameters first; its forward(x) alone does not, and would compute with the shards:
/// with a misleading error about shapes, or with wrong results where the shapes happen to fit. So
/// no operation of the tape takes a shard that is split over more than one rank. Who wants to
/// compute with the elements of a shard, for a norm of his own, takes detach() of it.
void check_whole(std::string_view op, const Tensor& input, std::size_t position);

}  // namespace moegrad
