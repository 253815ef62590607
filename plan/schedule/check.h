// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>

#include "plan/schedule/action.h"

namespace moegrad::plan {

/// As many buffers as there are messages: a SEND never waits.
inline constexpr int kUnlimitedBuffers = std::numeric_limits<int>::max();

struct ScheduleRules {
  /// How many ranks may have a copy of a stage: 2 for DualPipe. All actions of a stage on one
  /// micro-batch are on one rank in any case.
  int copies = 1;
  /// How many messages from one rank to another may be sent and not yet received. 0: a SEND and its
  /// RECV wait for each other. It plays no part in a schedule without transfers.
  int buffers = kUnlimitedBuffers;
  /// Whether the halves of a pair run one after the other, or the pair is one operation.
  bool pairs_in_turn = false;
  /// What must be there; 0: as many as the schedule speaks of.
  int stages = 0;
  int micro_batches = 0;
};

/// Proves that the ranks can run the schedule to its end, and that it is a whole training step:
///
///   - each stage has one rank; for each micro-batch it has F once, and B once or I and W once, in
///     this order; R, if there is one, is after F and before I or B;
///   - if there are transfers, there is a SEND and a RECV for each message that goes from rank to
///     rank, and no other; the SEND is after what it sends, the RECV before what needs it;
///   - if a row has UNSHARD, a stage's parameters are gathered whenever it runs, and never twice;
///   - if there is a REDUCE_GRAD, each stage has one, after its last W or B;
///   - the order of all ranks' actions has no cycle (Note [Order of a schedule]).
///
/// Throws ValueError `check_schedule: row <r>, cell <c>: <what is required>, got <what>`; for a
/// deadlock `check_schedule: deadlock, each waits for the one before it and the first for the last:
/// <actions>`.
void check_schedule(const Schedule& schedule, const ScheduleRules& rules = {});

/// The least ScheduleRules::buffers with which there is no deadlock. The schedule has passed
/// check_schedule() with as many buffers as it wants, and has transfers. How pairs run makes no
/// difference then: all that a pair waits for is received before it.
int buffers_needed(const Schedule& schedule);

}  // namespace moegrad::plan
