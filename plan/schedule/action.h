// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace moegrad::plan {

// Note [Pipeline schedules]
// A schedule is data: one row per rank, and in it what the rank does, cell by cell, in this order.
// A cell is one action, an overlapped pair of a forward and a backward, or idle. The model's layers
// are cut into stages, the batch into micro-batches, and both are counted from 0. Rows and cells
// are counted from 0, too: a row's number is its rank's.
//
// The language of actions is PyTorch's (torch.distributed.pipelining):
//
//     F I W B           forward; backward's input half, its weight half, the whole of it (I and W)
//     SEND_F RECV_F     a stage's output goes to the next stage, and comes from the one before
//     SEND_B RECV_B     the gradient of a stage's input goes to the stage before, and comes from
//                       the next one
//     UNSHARD RESHARD   a stage's parameters are gathered, and freed
//     REDUCE_GRAD       a stage's gradients are reduced over the ranks that share its parameters
//     OVERLAP_F_B       a forward and a backward of different micro-batches that run together
//
// and one action more, R: the forward of a stage is made again from the stage's input, which is all
// that was kept of it. In text: 2F0 is the forward of stage 2 on micro-batch 0; 1UNSHARD has no
// micro-batch; (0F8;7B4)OVERLAP_F_B is a pair.
//
// A generator (generators.h) makes rows of F, I, W, B and pairs alone. Passes (passes.h) add all
// the rest. check_schedule() proves that the result can run, simulate() says how long it takes and
// what memory it needs.

enum class ActionKind : std::uint8_t {
  kForward,
  kBackwardInput,
  kBackwardWeight,
  kFullBackward,
  kRecompute,
  kSendForward,
  kRecvForward,
  kSendBackward,
  kRecvBackward,
  kUnshard,
  kReshard,
  kReduceGrad,
};

/// Its letters: "F", "SEND_F", "UNSHARD".
std::string_view letters_of(ActionKind kind);

/// Whether an action of this kind is of one micro-batch: all but UNSHARD, RESHARD and REDUCE_GRAD.
bool has_micro_batch(ActionKind kind);
/// F, I, W, B or R.
bool is_compute(ActionKind kind);
/// I or B: what needs the gradient of the stage's output, and makes that of its input.
bool is_input_backward(ActionKind kind);
/// W or B: what ends a stage's work on a micro-batch.
bool is_weight_backward(ActionKind kind);
/// A SEND or a RECV.
bool is_transfer(ActionKind kind);
/// A SEND.
bool is_send(ActionKind kind);

/// The most that a file or a generator may have.
inline constexpr int kMostStages = 65536;
inline constexpr int kMostMicroBatches = 1 << 24;

struct Action {
  ActionKind kind = ActionKind::kForward;
  int stage = 0;
  int micro_batch = 0;  // 0 where the kind has none

  friend auto operator<=>(const Action&, const Action&) = default;
};

/// "2F0", "1UNSHARD".
std::string to_string(const Action& action);

/// Idle if empty, else one action, or the two of an overlapped pair: F, then I or B.
using Cell = std::vector<Action>;
/// What one rank does, in this order.
using Row = std::vector<Cell>;
/// A row per rank.
using Schedule = std::vector<Row>;

/// "", "2F0", "(0F8;7B4)OVERLAP_F_B".
std::string to_string(const Cell& cell);

/// How many stages and micro-batches a schedule speaks of: one more than the largest number.
struct ScheduleSize {
  int ranks = 0;
  int stages = 0;
  int micro_batches = 0;

  friend bool operator==(const ScheduleSize&, const ScheduleSize&) = default;
};
ScheduleSize size_of(const Schedule& schedule);

/// Whether any action is a SEND or a RECV.
bool has_transfers(const Schedule& schedule);

/// What is different in the first cell that is: "row 1, cell 4: 3F2 against 3F1". Nothing if the
/// schedules are equal. Cells that only one of them has differ, too.
std::optional<std::string> first_difference(const Schedule& a, const Schedule& b);

/// "row 1, cell 4".
std::string place_name(std::size_t row, std::size_t cell);

}  // namespace moegrad::plan
