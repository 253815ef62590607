// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <list>
#include <string>
#include <vector>

#include "framework/distributed/threads/rendezvous.h"

namespace moegrad {

/// For what one rank is excused from its meetings (ProcessGroup::excuse). Guarded by the hub's
/// mutex.
class Excuses {
 private:
  struct Excuse {
    const GroupState* group;
    std::string what;  // empty within another one of the same group
    CollectiveClock::time_point since;
    CollectiveClock::time_point warns_at;
  };

 public:
  using Handle = std::list<Excuse>::iterator;

  /// `deadline`: the time after which a warning is due, here and below.
  Excuses(int rank, CollectiveClock::duration deadline) : rank_(rank), deadline_(deadline) {}

  Handle begin(const GroupState& group, std::string what);
  /// Returns the warning that is due at its end; empty for none.
  std::string end(Handle excuse);
  /// Whether no deadline counts for the rank in `group`. An excuse in `world` counts in any group.
  bool count_in(const GroupState& group, const GroupState& world) const;
  /// Adds the warnings that are due while excuses go on.
  void warn(CollectiveClock::time_point now, std::vector<std::string>& warnings);

 private:
  int rank_;
  CollectiveClock::duration deadline_;
  std::list<Excuse> excuses_;
};

}  // namespace moegrad
