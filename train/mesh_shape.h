// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "framework/distributed/device_mesh.h"

namespace moegrad::training {

/// Ranks in a grid of replicas and shards.
struct MeshShape {
  int replicas = 1;
  int shards = 1;

  int ranks() const { return replicas * shards; }
  friend bool operator==(const MeshShape&, const MeshShape&) = default;
};

/// "4" for four shards, "2x2" for two replicas of two shards.
std::string to_string(const MeshShape& shape);

/// A mesh over all ranks of `group`, with an axis "shard". If there is more than one replica, an
/// axis "replicate" comes before it. Experts may have another shape. Collective. ValueError unless
/// the shapes have as many ranks as the group.
DeviceMesh make_mesh(const std::shared_ptr<ProcessGroup>& group, const MeshShape& shape,
                     const std::optional<MeshShape>& experts = std::nullopt);

}  // namespace moegrad::training
