// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/tensor/tensor.h"

namespace moegrad {

/// This rank's elements of a shard, as a tensor that ops take: as shard.detach(), but without its
/// ShardSpec. What ops make of it is of this rank alone (Note [Shards are no operands]).
inline Tensor to_local(const Tensor& shard) {
  Tensor local = shard.detach();
  local.set_shard_spec(nullptr);
  return local;
}

}  // namespace moegrad
