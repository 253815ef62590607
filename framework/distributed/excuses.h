// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <list>
#include <string>
#include <vector>

#include "framework/distributed/collective_clock.h"

namespace moegrad {

/// For what one rank is excused from its collectives (ProcessGroup::excuse). A group is known by an
/// address. Guarded by the mutex of the backend that has it.
class Excuses {
 private:
  struct Excuse {
    const void* group;
    std::string what;  // empty within another one of the same group
    CollectiveClock::time_point since;
    CollectiveClock::time_point warns_at;
  };
  struct Ended {
    const void* group;
    CollectiveClock::time_point since;
    CollectiveClock::time_point until;
  };

 public:
  using Handle = std::list<Excuse>::iterator;

  /// `deadline`: the time after which a warning is due, here and below.
  Excuses(int rank, CollectiveClock::duration deadline) : rank_(rank), deadline_(deadline) {}

  Handle begin(const void* group, std::string what);
  /// Returns the warning that is due at its end; empty for none.
  std::string end(Handle excuse);
  /// For how much of the last `time` the rank was excused in `group`, or in `world`, which counts
  /// in any group. Excuses before the last kRemembered count as if each had come right before the
  /// next one of its group.
  CollectiveClock::duration within(CollectiveClock::duration time, const void* group,
                                   const void* world) const;
  /// Adds the warnings that are due while excuses go on.
  void warn(CollectiveClock::time_point now, std::vector<std::string>& warnings);

 private:
  static constexpr std::size_t kRemembered = 64;

  void join_first_to_next();

  int rank_;
  CollectiveClock::duration deadline_;
  std::list<Excuse> excuses_;
  std::vector<Ended> ended_;  // by their ends, without those within another one of the same group
};

}  // namespace moegrad
