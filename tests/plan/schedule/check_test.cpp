// SPDX-License-Identifier: Apache-2.0
#include "plan/schedule/check.h"

#include <algorithm>

#include "framework/runtime/error.h"
#include "plan/schedule/generators.h"
#include "plan/schedule/passes.h"
#include "plan/schedule/schedule_csv.h"
#include "plan/schedule/simulate.h"
#include "tests/plan/schedule/golden_schedules.h"
#include "tests/testing.h"

namespace moegrad::check_test {
namespace {

using namespace plan;
using test::message_of;

Schedule parsed(const std::string& text) {
  return read_schedule("# letters: F I W B\n" + text).schedule;
}
/// What check_schedule() says, without its name.
std::string refused(const Schedule& schedule, const ScheduleRules& rules = {}) {
  const auto message = message_of<ValueError>([&] { check_schedule(schedule, rules); });
  const std::string name = "check_schedule: ";
  EXPECT_EQ(message.substr(0, name.size()), name);
  return message.substr(std::min(name.size(), message.size()));
}
std::string refused(const std::string& text) { return refused(parsed(text)); }

TEST(CheckSchedule, AcceptsPyTorchsFiles) {
  for (const auto* name : test::kGoldenSchedules) {
    EXPECT_NO_THROW(check_schedule(read_schedule(test::golden_schedule(name)).schedule)) << name;
  }
}

TEST(CheckSchedule, RefusesEveryTruncationAndSwapOfPyTorchsFile) {
  const auto golden = read_schedule(test::golden_schedule("dualpipev_4rank_10mb")).schedule;
  for (std::size_t row = 0; row < golden.size(); ++row) {
    auto cut = golden;
    cut[row].pop_back();
    EXPECT_EQ(refused(cut).substr(0, 5), "row " + std::to_string(row)) << row;
    auto without = golden;
    without.erase(without.begin() + static_cast<std::ptrdiff_t>(row));
    refused(without);
    auto reversed = golden;
    std::ranges::reverse(reversed[row]);
    refused(reversed);
  }
  EXPECT_EQ(refused(Schedule{}), "must have at least one action, got none");
  EXPECT_EQ(refused(Schedule{{}, {{}}}), "must have at least one action, got none");
}

TEST(CheckSchedule, WantsEachActionOnce) {
  EXPECT_EQ(refused("0F0,0B0,0F0\n"),
            "row 0, cell 2: 0F0 must be there once, got it in row 0, cell 0 already");
  EXPECT_EQ(refused("0F0,1F0,1B0,0B0\n1F0\n"),
            "row 1, cell 0: 1F0 must be there once, got it in row 0, cell 1 already");
  EXPECT_EQ(refused("0F0,0B0,1B0\n"), "row 0: must have 1F0, got none");
  EXPECT_EQ(refused("0F0,0B0,0F2,0B2\n"), "row 0: must have 0F1, got none");
  EXPECT_EQ(refused("0F0,0B0,2F0,2B0\n"), "must have 1F0, got none");
  EXPECT_EQ(refused("0F0,0F1,0B0\n"), "row 0: must have 0I1 or 0B1, got none");
  EXPECT_EQ(refused("0F0,0I0\n"), "row 0: must have 0W0 or 0B0, got none");
  EXPECT_EQ(
      refused("0F0,0I0,0W0,0B0\n"),
      "row 0, cell 1: must have either 0B0 or its halves, got 0I0 here and 0B0 in row 0, cell 3");
  EXPECT_EQ(
      refused("0F0,0B0,0W0\n"),
      "row 0, cell 2: must have either 0B0 or its halves, got 0W0 here and 0B0 in row 0, cell 1");
}

TEST(CheckSchedule, WantsWhatItIsToldToHave) {
  const auto schedule = one_f_one_b(2, 3);
  EXPECT_NO_THROW(check_schedule(schedule, {.stages = 2, .micro_batches = 3}));
  EXPECT_EQ(refused(schedule, {.stages = 3}), "must have 2F0, got none");
  EXPECT_EQ(refused(schedule, {.micro_batches = 4}), "row 0: must have 0F3, got none");
  EXPECT_EQ(refused(schedule, {.stages = 1}), "must have 1 stages, got 2");
  EXPECT_EQ(refused(schedule, {.micro_batches = 2}), "must have 2 micro-batches, got 3");
  EXPECT_EQ(refused(schedule, {.copies = 0}),
            "copies must be at least 1 and buffers at least 0, got 0 and 2147483647");
  EXPECT_EQ(refused(schedule, {.buffers = -1}),
            "copies must be at least 1 and buffers at least 0, got 1 and -1");
}

TEST(CheckSchedule, WantsAStageOnOneRank) {
  EXPECT_EQ(refused("0F0,0B0\n0F1,0B1\n"),
            "row 1, cell 0: stage 0 must be on 1 rank, got 0F1 here and row 0 with the same stage");
  const auto copies = dual_pipe(4, 8);
  EXPECT_EQ(refused(copies).substr(0, 44), "row 2, cell 0: stage 1 must be on 1 rank, go");
  EXPECT_NO_THROW(check_schedule(copies, {.copies = 2}));
  EXPECT_EQ(
      refused(parsed("0F0,0B0\n0F1,0B1\n0F2,0B2\n"), {.copies = 2}),
      "row 2, cell 0: stage 0 must be on 2 ranks at most, got 0F2 here and row 0 with the same "
      "stage");
  EXPECT_EQ(refused(parsed("0F0,0F1,0B1\n0B0\n"), {.copies = 2}),
            "row 1, cell 0: 0B0 must be in row 0, where 0F0 is");
}

TEST(CheckSchedule, WantsBackwardAfterForward) {
  EXPECT_EQ(refused("0B0,0F0\n"), "row 0, cell 0: 0B0 must come after 0F0, got that in cell 1");
  EXPECT_EQ(refused("0I0,0F0,0W0\n"), "row 0, cell 0: 0I0 must come after 0F0, got that in cell 1");
  EXPECT_EQ(refused("0F0,0W0,0I0\n"), "row 0, cell 1: 0W0 must come after 0I0, got that in cell 2");
  EXPECT_EQ(refused("(0F0;0B0)OVERLAP_F_B\n"),
            "row 0, cell 0: 0B0 must come after 0F0, got that in cell 0");
  EXPECT_EQ(refused("0R0,0F0,0B0\n"), "row 0, cell 0: 0R0 must come after 0F0, got that in cell 1");
  EXPECT_EQ(refused("0F0,0B0,0R0\n"), "row 0, cell 1: 0B0 must come after 0R0, got that in cell 2");
}

TEST(CheckSchedule, WantsCellsThatAreActionsOrPairs) {
  const Action forward = {.kind = ActionKind::kForward},
               backward = {.kind = ActionKind::kFullBackward};
  EXPECT_EQ(
      refused(Schedule{{{forward, forward}}}),
      "row 0, cell 0: must be one action, or F and then I or B, got (0F0;0F0)OVERLAP_F_B and 2 "
      "actions");
  EXPECT_EQ(
      refused(Schedule{{{forward}, {backward, backward, backward}}}),
      "row 0, cell 1: must be one action, or F and then I or B, got (0B0;0B0)OVERLAP_F_B and 3 "
      "actions");
  EXPECT_EQ(refused(Schedule{{{{.stage = -1}}}}),
            "row 0, cell 0: stages and micro-batches must be counted from 0, got -1F0");
  EXPECT_EQ(refused(Schedule{{{{.micro_batch = -1}}}}),
            "row 0, cell 0: stages and micro-batches must be counted from 0, got 0F-1");
  EXPECT_EQ(refused(Schedule{{{{.kind = ActionKind::kUnshard, .micro_batch = 5}}}}),
            "row 0, cell 0: 0UNSHARD must have no micro-batch, got 5");
}

TEST(CheckSchedule, FindsADeadlockOfRanks) {
  // Rank 0 wants the gradient of micro-batch 1 first, rank 1 makes that of 0 first.
  EXPECT_EQ(refused("0F0,0B1,0F1,0B0\n1F0,1B0,1F1,1B1\n"),
            "row 0, cell 1: 0B1 must come after 0F1, got that in cell 2");
  EXPECT_EQ(refused("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n"),
            "deadlock, each waits for the one before it and the first for the last: row 0, cell 1: "
            "0B0; row 0, cell 2: 0F1; row 1, cell 1: 1F1; row 1, cell 2: 1B0");
}

TEST(CheckSchedule, SaysOfACycleOnlyWhereItEntersAndLeavesARank) {
  const auto message = refused("0F0,0B0,0F1,0B1,0F2,0B2\n1F0,1F1,1F2,1B0,1B1,1B2\n");
  EXPECT_EQ(message,
            "deadlock, each waits for the one before it and the first for the last: row 0, cell 1: "
            "0B0; row 0, cell 2: 0F1; row 1, cell 1: 1F1; row 1, cell 3: 1B0");
}

TEST(CheckSchedule, FindsADeadlockOfOneRankWithItself) {
  EXPECT_EQ(refused("1F0,0F0,1B0,0B0\n"),
            "deadlock, each waits for the one before it and the first for the last: row 0, cell 0: "
            "1F0; row 0, cell 1: 0F0");
  EXPECT_EQ(refused("0F0,0SEND_F0,3RECV_F0,3F0,3B0,3SEND_B0,0RECV_B0,0B0\n"
                    "1RECV_F0,2F0,2SEND_F0,1F0,2RECV_B0,2B0,1B0,1SEND_B0\n"),
            "deadlock, each waits for the one before it and the first for the last: row 1, cell 1: "
            "2F0; row 1, cell 3: 1F0");
}

TEST(CheckSchedule, FindsADeadlockOfBlockingTransfers) {
  // Both send first.
  const auto schedule = add_transfers(one_f_one_b(2, 3));
  EXPECT_NO_THROW(check_schedule(schedule));
  EXPECT_NO_THROW(check_schedule(schedule, {.buffers = 1}));
  EXPECT_EQ(refused(schedule, {.buffers = 0}),
            "deadlock, each waits for the one before it and the first for the last: row 0, cell 3: "
            "0SEND_F1 and 1RECV_F1; row 0, cell 4: 0RECV_B0 and 1SEND_B0");
  EXPECT_EQ(buffers_needed(schedule), 1);
  EXPECT_EQ(buffers_needed(add_transfers_when_sent(one_f_one_b(2, 3))), 0);
}

TEST(CheckSchedule, FindsADeadlockOfTooFewBuffers) {
  // Rank 1 receives the last of three messages first.
  const auto schedule = parsed(
      "0F0,0SEND_F0,0F1,0SEND_F1,0F2,0SEND_F2,0RECV_B2,0B2,0RECV_B1,0B1,0RECV_B0,0B0\n"
      "1RECV_F2,1F2,1RECV_F1,1F1,1RECV_F0,1F0,1B2,1SEND_B2,1B1,1SEND_B1,1B0,1SEND_B0\n");
  EXPECT_NO_THROW(check_schedule(schedule));
  EXPECT_NO_THROW(check_schedule(schedule, {.buffers = 3}));
  EXPECT_EQ(refused(schedule, {.buffers = 2}),
            "deadlock, each waits for the one before it and the first for the last: row 0, cell 5: "
            "0SEND_F2; row 1, cell 0: 1RECV_F2; row 1, cell 2: 1RECV_F1");
  EXPECT_EQ(buffers_needed(schedule), 3);
}

TEST(CheckSchedule, RunsTheHalvesOfAPairInTurnOrAtOnce) {
  // 0F1 is the first half of a pair, whose second half waits for what 0F1 makes.
  const auto schedule = parsed("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1F1,1B0,1B1\n");
  EXPECT_EQ(refused(schedule),
            "deadlock, each waits for the one before it and the first for the last: row 0, cell 1: "
            "(0F1;0B0)OVERLAP_F_B; row 1, cell 1: 1F1; row 1, cell 2: 1B0");
  EXPECT_NO_THROW(check_schedule(schedule, {.pairs_in_turn = true}));
  EXPECT_EQ(simulate(schedule, {.pairs_in_turn = true}).makespan, 9);
  // A SEND comes after the whole pair, so the other rank's half waits for both.
  EXPECT_EQ(refused(add_transfers(schedule), {.pairs_in_turn = true}),
            "deadlock, each waits for the one before it and the first for the last: row 0, cell 2: "
            "0RECV_B0; row 0, cell 4: 0SEND_F1; row 1, cell 2: 1RECV_F1; row 1, cell 5: 1SEND_B0");
}

TEST(CheckSchedule, WantsTransfersInPairs) {
  const std::string sends = "0F0,0SEND_F0,0RECV_B0,0B0\n";
  const std::string receives = "1RECV_F0,1F0,1B0,1SEND_B0\n";
  EXPECT_NO_THROW(check_schedule(parsed(sends + receives)));
  EXPECT_EQ(refused(sends + "1F0,1B0,1SEND_B0\n"),
            "row 0, cell 1: 0SEND_F0 must have a 1RECV_F0, got none");
  EXPECT_EQ(refused("0F0,0RECV_B0,0B0\n" + receives),
            "row 0, cell 0: 0F0 must have a 0SEND_F0, since its reader is on rank 1; got none");
  EXPECT_EQ(refused("0F0,0SEND_F0,0B0\n" + receives),
            "row 1, cell 3: 1SEND_B0 must have a 0RECV_B0, got none");
  EXPECT_EQ(refused(sends + "1RECV_F0,1F0,1B0\n"),
            "row 1, cell 2: 1B0 must have a 1SEND_B0, since its reader is on rank 0; got none");
  EXPECT_EQ(refused("0SEND_F0,0F0,0RECV_B0,0B0\n" + receives),
            "row 0, cell 0: 0SEND_F0 must come after what it sends, got that in cell 1");
  EXPECT_EQ(refused("0F0,0SEND_F0,0B0,0RECV_B0\n" + receives),
            "row 0, cell 3: 0RECV_B0 must come before what needs it, got that in cell 2");
  EXPECT_EQ(
      refused(parsed("0F0,0SEND_F0,0RECV_B0,0B0,1SEND_B0\n1RECV_F0,1F0,1B0\n"), {.copies = 2}),
      "row 0, cell 4: 1SEND_B0 must be in row 1, where its stage is");
  EXPECT_EQ(refused(sends + "1RECV_F0,1F0,1B0,1SEND_B0,1SEND_F0\n"),
            "row 1, cell 4: 1SEND_F0 must be a message from stage to stage, got stages 1 and 2");
  EXPECT_EQ(refused("0F0,0SEND_F0,1RECV_F0,1F0,1B0,0B0\n"),
            "row 0, cell 1: 0SEND_F0 must go from rank to rank, got both stages on rank 0");
}

TEST(CheckSchedule, WantsParametersGathered) {
  EXPECT_NO_THROW(check_schedule(parsed("0UNSHARD,0F0,0RESHARD,0UNSHARD,0B0\n")));
  EXPECT_EQ(
      refused("0UNSHARD,0F0,0RESHARD,0B0\n"),
      "row 0, cell 3: 0B0 needs parameters that 0UNSHARD has gathered, got them not gathered");
  EXPECT_EQ(
      refused("0F0,0UNSHARD,0B0\n"),
      "row 0, cell 0: 0F0 needs parameters that 0UNSHARD has gathered, got them not gathered");
  EXPECT_EQ(refused("0UNSHARD,0F0,0UNSHARD,0B0\n"),
            "row 0, cell 2: 0UNSHARD must gather what is not gathered, got it gathered already");
  EXPECT_EQ(refused("0UNSHARD,0F0,0B0,0RESHARD,0RESHARD\n"),
            "row 0, cell 4: 0RESHARD must free what is gathered, got it not gathered");
  EXPECT_EQ(refused(parsed("0F0,0B0\n1UNSHARD,1F0,0UNSHARD,0RESHARD,1B0\n"), {.copies = 2}),
            "row 1, cell 2: 0UNSHARD must be on a rank that runs the stage, got one that does not");
  EXPECT_EQ(
      refused(parsed("0F0,0B0,0REDUCE_GRAD\n1F0,1B0,1REDUCE_GRAD,0REDUCE_GRAD\n"), {.copies = 2}),
      "row 1, cell 3: 0REDUCE_GRAD must be on a rank that runs the stage, got one that does not");
}

TEST(CheckSchedule, WantsGradientsReducedOnce) {
  EXPECT_NO_THROW(check_schedule(parsed("0F0,0I0,0W0,0REDUCE_GRAD\n")));
  EXPECT_EQ(refused("0F0,0B0,0REDUCE_GRAD,0REDUCE_GRAD\n"),
            "row 0, cell 3: 0REDUCE_GRAD must be there once, got it in row 0, cell 2 already");
  EXPECT_EQ(
      refused("0F0,0I0,0REDUCE_GRAD,0W0\n"),
      "row 0, cell 2: 0REDUCE_GRAD must come after the stage's last W or B, got that in cell 3");
  EXPECT_EQ(refused("0F0,1F0,1B0,0B0,0REDUCE_GRAD\n"),
            "row 0: must have 1REDUCE_GRAD, as another stage has one, got none");
}

}  // namespace
}  // namespace moegrad::check_test
