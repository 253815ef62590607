// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "framework/distributed/device_mesh.h"
#include "framework/distributed/to_local.h"
#include "framework/runtime/rank_context.h"
#include "fsdp/fully_shard.h"
#include "tests/fsdp/random_sequences.h"
#include "tests/testing.h"

// A network of two blocks, for tests of the values that a sharded module sees.

namespace moegrad::fsdp::two_block_net {

inline test::Sequence two_blocks(const std::vector<bool>& recomputed = {false, false}) {
  return {.width = 4, .blocks = 2, .recomputed = recomputed, .calls = {0, 1}};
}

/// A group for each block and one for the rest.
inline State& shard(test::RealNet& net, RankContext& rank, const Policy& policy = {}) {
  const auto mesh = DeviceMesh::flat(rank.group());
  for (auto& block : net.blocks) fully_shard(*block, mesh, policy);
  return fully_shard(net, mesh, policy);
}

inline Tensor loss_of(test::RealNet& net, std::uint64_t seed = 5) {
  return net(test::randn({2, 4}, seed));
}

/// Writes to the parameters in place.
inline void halve(const nn::Module& module) {
  for (const auto& [name, parameter] : module.named_parameters()) {
    Tensor live = parameter.detach();
    copy_(live, ops::mul(to_local(live), 0.5));
  }
}

}  // namespace moegrad::fsdp::two_block_net
