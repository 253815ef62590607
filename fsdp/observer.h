// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace moegrad::fsdp {

/// What happens to a group, or to the module call that it belongs to.
enum class Event : std::uint8_t {
  kPreForward,    // the module's forward begins (not when it is recomputed)
  kPostForward,   // the module's forward ends (not when it is recomputed)
  kPreBackward,   // a gradient reaches the module's part of the tape
  kPostBackward,  // backward has left that part and handled its gradients, or backward ends
  kUnshard,       // the parameters are needed now
  kPrefetch,      // the parameters are gathered ahead of time
  kReshard,       // the unsharded parameters are freed
  kGather,        // an all-gather is issued; none on a world of one
  kReduce,        // a reduce-scatter is issued; none on a world of one
  kAllReduce,     // an all-reduce over the replicas is issued
};

std::string_view to_string(Event event);

/// Gets the events of the groups that it is set on, in order, on the rank's compute thread
/// (State::set_observer). `group` is the path of the module that was passed to fully_shard, "" for
/// the outermost module. A call may have a second group, for parameters on another mesh; that group
/// is named after its first parameter.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void on_event(Event event, const std::string& group) = 0;
};

}  // namespace moegrad::fsdp
