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
  std::vector<Tensor*> slots;                 // several when tied
  std::vector<std::shared_ptr<Tensor>> kept;  // ParameterSlot::kept of each
  nn::ParameterLayout layout;
  std::int64_t dim = 0;              // that is cut
  Tensor sharded;                    // this rank's part, a view of the group's flat shard
  Tensor unsharded;                  // the whole; bytes exist only while gathered
  bool trainable = true;             // what both forms said when they last agreed
  std::uint64_t filled_version = 0;  // of the unsharded storage, as the gather left it
};

/// The ranks that a group's parameters are spread over, and those that hold the same part of them.
struct GroupRanks {
  std::shared_ptr<ProcessGroup> shard;     // null: each rank holds the whole
  std::shared_ptr<ProcessGroup> replicas;  // null: there is one replica

  int num_shards() const { return shard ? shard->size() : 1; }
  int num_replicas() const { return replicas ? replicas->size() : 1; }
  friend bool operator==(const GroupRanks&, const GroupRanks&) = default;
};

}  // namespace moegrad::fsdp
