// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace moegrad::fsdp {

/// What happens to a group, or to the module call that it belongs to.
enum class Event : std::uint8_t {
  kPreForward,    // the module's forward begins, the recomputed one excepted
  kPostForward,   // and ends
  kPreBackward,   // a gradient reaches the module's part of the tape
  kPostBackward,  // backward has left it, and dealt with its gradients; at the latest when it ends
  kUnshard,       // the parameters are asked for now
  kPrefetch,      // they are asked for ahead of time
  kReshard,       // the unsharded parameters are freed
  kGather,        // an all-gather is issued; none on a world of one
  kReduce,        // a reduce-scatter is issued; likewise
  kAllReduce,     // an all-reduce over the replicas is issued
};

std::string_view to_string(Event event);

/// Sees the events of the groups it is set on, in order, on the thread of the rank that computes
/// (State::set_observer). `group` is the path of the module that was passed to fully_shard, "" for
/// the outermost one; a second group of one call, for parameters on a mesh of their own, is called
/// after its first parameter.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void on_event(Event event, const std::string& group) = 0;
};

}  // namespace moegrad::fsdp
