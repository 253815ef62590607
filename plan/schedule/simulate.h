// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/schedule/action.h"
#include "plan/schedule/check.h"

namespace moegrad::plan {

/// What a stage's actions on one micro-batch take, and what they keep. Times are in any unit, the
/// same everywhere; B takes backward_input + backward_weight, R takes forward.
struct StageCost {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
  double unshard = 0;  // beside the rank's other actions, as is reduce_grad
  double reduce_grad = 0;
  std::int64_t output_bytes = 0;      // of the message to the next stage, and of its gradient
  std::int64_t activation_bytes = 0;  // from the beginning of F to the end of W or B
  std::int64_t input_bytes = 0;       // all that is kept between F and R, if there is an R
  std::int64_t parameter_bytes = 0;   // from UNSHARD to RESHARD; all the time if the rank has none
  std::int64_t gradient_bytes = 0;    // from the first W or B to the end of REDUCE_GRAD, if any
};

struct SimulationOptions {
  std::vector<StageCost> stages = {{}};  // one for each stage, or one for all
  /// A message takes latency + bytes / bytes_per_time. Two from one rank to another do not leave at
  /// once: the second leaves when the bytes of the first have. 0: any number of bytes takes no
  /// time.
  double latency = 0;
  double bytes_per_time = 0;
  int buffers = kUnlimitedBuffers;  // as ScheduleRules
  int copies = 1;                   // as ScheduleRules
  /// The halves of a pair run one after the other; else it is one operation that takes pair_factor
  /// times what both take.
  bool pairs_in_turn = false;
  double pair_factor = 1;
};

/// When an action runs. A SEND or RECV begins and ends at once, unless there are no buffers.
struct TimedAction {
  Action action = {};
  std::size_t row = 0;
  std::size_t cell = 0;
  double begin = 0;
  double end = 0;
};

/// What is live from `time` on.
struct LiveBytes {
  double time = 0;
  std::int64_t activations = 0;
  std::int64_t parameters = 0;
  std::int64_t gradients = 0;

  std::int64_t total() const { return activations + parameters + gradients; }
};

struct RankSimulation {
  double busy = 0;                   // the time of F, I, W, B, R and pairs
  double bubble = 0;                 // makespan - busy
  std::vector<LiveBytes> live = {};  // by ascending time, the first at 0
  std::int64_t peak_bytes = 0;       // the largest total
  int peak_activations = 0;  // the most micro-batches of stages that are between F and W or B
};

struct Simulation {
  double makespan = 0;                    // from 0 to the end of the last action
  std::vector<TimedAction> actions = {};  // row by row, in order; a pair's two have the same times
  std::vector<RankSimulation> ranks = {};
  /// A chain of actions of which each begins when the one before it, or its message, has arrived,
  /// from time 0 to the makespan. Actions that take no time are left out.
  std::vector<TimedAction> critical_path = {};
};

/// Runs the schedule on ranks that begin each cell as soon as the cell before it is done and what
/// it waits for is there (Note [Order of a schedule]): the time of each action is that of the
/// longest path to it. A schedule without transfers is one whose messages leave and arrive by
/// themselves.
///
/// Throws what check_schedule() throws, and ValueError for a cost below 0 or not finite, or costs
/// of another number of stages.
Simulation simulate(const Schedule& schedule, const SimulationOptions& options = {});

}  // namespace moegrad::plan
