// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "framework/distributed/process_group.h"
#include "framework/tensor/tensor.h"
#include "nn/module.h"

namespace moegrad::fsdp {

/// One parameter of a group in its two forms. Both tensors are made once: Functions and optimizers
/// keep handles on them.
struct ShardedParam {
  std::string name;
  std::vector<Tensor*> slots;                 // several if the parameter is tied
  std::vector<std::shared_ptr<Tensor>> kept;  // ParameterSlot::kept of each slot
  nn::ParameterLayout layout;
  std::int64_t dim = 0;              // the dimension that is cut
  Tensor sharded;                    // this rank's part, a view of the group's flat shard
  Tensor unsharded;                  // the whole; bytes exist only while gathered
  bool trainable = true;             // requires_grad of both forms when they last agreed
  std::uint64_t filled_version = 0;  // of the unsharded storage, after the gather

  /// How many uses it may have whose gradients are reduced apart (Note [Uses of a tied weight]).
  /// The slots of stacked weights are parts of one, not tied.
  std::size_t uses() const { return layout.stacked.ndim() > 0 ? 1 : slots.size(); }
};

/// The ranks that a group's parameters are spread over, and the ranks that hold the same part.
struct GroupRanks {
  std::shared_ptr<ProcessGroup> shard = nullptr;     // each rank holds the whole
  std::shared_ptr<ProcessGroup> replicas = nullptr;  // there is one replica

  int num_shards() const { return shard ? shard->size() : 1; }
  int num_replicas() const { return replicas ? replicas->size() : 1; }
  int size() const { return num_replicas() * num_shards(); }
  /// This rank among them: shards run fastest.
  int rank() const {
    return (replicas ? replicas->rank() : 0) * num_shards() + (shard ? shard->rank() : 0);
  }
  friend bool operator==(const GroupRanks&, const GroupRanks&) = default;
};

}  // namespace moegrad::fsdp
