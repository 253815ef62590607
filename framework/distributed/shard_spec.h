// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "framework/distributed/process_group.h"
#include "framework/tensor/shape.h"

namespace moegrad {

/// Which part of a global tensor a sharded parameter holds: [begin, end) of dimension `dim`, which
/// is spread over the ranks of `group`. Gradient clipping, checkpoints and resharding read it; a
/// tensor without one is whole.
struct ShardSpec {
  Shape global_shape;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::shared_ptr<ProcessGroup> group = nullptr;  // null on a world of one
  std::int64_t dim = 0;
  /// The ranks that hold the same part, one of each replica; null where there is one replica.
  std::shared_ptr<ProcessGroup> replicas = nullptr;
  /// The tensor is the whole parameter that was there before it was sharded: its module no longer
  /// has it, and training it would change nothing.
  bool replaced = false;
};

/// ValueError, which names `who` and the tensor, if both are shards and not of the same part.
void check_same_part(std::string_view who, const std::string& name,
                     const std::shared_ptr<const ShardSpec>& given,
                     const std::shared_ptr<const ShardSpec>& own);

}  // namespace moegrad
