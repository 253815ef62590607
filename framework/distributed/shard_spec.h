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
/// is spread over the ranks of `group`. Gradient clipping, checkpoints and resharding read it. A
/// tensor without a ShardSpec is whole.
struct ShardSpec {
  Shape global_shape;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::shared_ptr<ProcessGroup> group = nullptr;  // null on a world of one
  std::int64_t dim = 0;
  /// The ranks that hold the same part, one per replica; null if there is one replica.
  std::shared_ptr<ProcessGroup> replicas = nullptr;
  /// The tensor is the whole parameter that the module had before it was sharded. The module no
  /// longer has it, and training it would change nothing.
  bool replaced = false;
};

/// ValueError, with `subject` and the tensor's name, if both are shards but of different parts.
void check_same_part(std::string_view subject, const std::string& name,
                     const std::shared_ptr<const ShardSpec>& given,
                     const std::shared_ptr<const ShardSpec>& own);

}  // namespace moegrad
