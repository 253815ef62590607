// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace moegrad {
class ProcessGroup;
}

namespace moegrad::fsdp {

class ForwardOrder;
class ParamGroup;
class State;

/// The reductions in flight of one root, or of several roots that share it (share_comm_ctx).
///
/// Note [Draining reductions]
/// The input of a reduce-scatter is as large as the unsharded gradients. So the number of
/// reductions in flight is capped, by default at one per process group: groups on different meshes
/// do not wait for each other. Before a group starts a reduction, it waits for the oldest ones over
/// the same process group until there is room. Process groups are the same if they are the same
/// object; their position in a list does not matter. The work that follows a reduce-scatter (the
/// all-reduce, adding to grad()) is only as large as a shard. It is waited for at the end of
/// backward, or when the same group reduces again.
class CommContext {
 public:
  /// Makes room for one more reduction over `ranks`.
  void drain(const ProcessGroup* ranks, std::size_t max_in_flight);
  void add(const ProcessGroup* ranks, ParamGroup& group);
  /// Ends all reductions.
  void finish();
  /// Forgets the reductions of `group`.
  void remove(ParamGroup& group);

 private:
  std::vector<ParamGroup*>& scattering(const ProcessGroup* ranks);

  // In the order of first use, which is the same on all ranks.
  std::vector<std::pair<const ProcessGroup*, std::vector<ParamGroup*>>> scattering_;
  std::vector<ParamGroup*> reducing_;  // in order of issue; ends when finish() has run
};

}  // namespace moegrad::fsdp
