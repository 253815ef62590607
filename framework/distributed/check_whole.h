// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>

#include "framework/tensor/tensor.h"

namespace moegrad {

/// Error if `input`, which is input number `position` of operation `op`, is a shard of a parameter.
///
/// Note [Shards are no operands]
/// fully_shard replaces each parameter by a shard, and model(x) gathers the whole ones first. Its
/// forward(x) alone does not: shapes would be wrong, or fit by chance, and so the results be. So no
/// operation takes a shard that is split over more ranks, nor its grad(), its detach(), a clone()
/// of these, or a tensor of a state_dict(). To compute with this rank's elements alone, for example
/// their share of a norm, take to_local(shard), as DTensor's. The part of a parameter that another
/// kind of parallelism has cut is an operand: its module computes with that part.
void check_whole(std::string_view op, const Tensor& input, std::size_t position);

}  // namespace moegrad
