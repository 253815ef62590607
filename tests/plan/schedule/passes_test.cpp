// SPDX-License-Identifier: Apache-2.0
#include "plan/schedule/passes.h"

#include <algorithm>
#include <map>

#include "framework/runtime/error.h"
#include "plan/schedule/check.h"
#include "plan/schedule/generators.h"
#include "plan/schedule/schedule_csv.h"
#include "tests/plan/schedule/golden_schedules.h"
#include "tests/testing.h"

namespace moegrad::passes_test {
namespace {

using namespace plan;
using test::message_of;

Schedule parsed(const std::string& text) {
  return read_schedule("# letters: F I W B\n" + text).schedule;
}
std::string text(const Schedule& schedule) { return to_csv({.schedule = schedule}); }

TEST(SchedulePasses, MergeAndTransfersAreThoseOfPyTorchsFiles) {
  const auto compute = read_schedule(test::golden_schedule("zb1p_2rank_2stagep_compute")).schedule;
  const auto comms = read_schedule(test::golden_schedule("zb1p_2rank_2stagep_comms")).schedule;
  const auto made = add_transfers_when_sent(merge_backward(compute));
  EXPECT_EQ(first_difference(made, comms), std::nullopt);
}

TEST(SchedulePasses, MergeJoinsNeighboursOfOneMicroBatchAlone) {
  EXPECT_EQ(text(merge_backward(parsed("0F0,0F1,0I0,,0W0,0I1,0F2,0W1,0I2,1W2\n,1F0,\n"))),
            "0F0,0F1,0B0,0I1,0F2,0W1,0I2,1W2\n1F0\n");
}

TEST(SchedulePasses, TransfersAreSentAtOnceAndReceivedBeforeUse) {
  EXPECT_EQ(text(add_transfers(one_f_one_b(2, 2))),
            "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
            "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n");
}

TEST(SchedulePasses, PairsAndTurnsOfAVHaveTransfersToo) {
  const auto schedule = add_transfers(dual_pipe_v(2, 4));
  EXPECT_NO_THROW(check_schedule(schedule));
  // Stages 1 and 2 are on one rank.
  EXPECT_EQ(text(schedule).find("1SEND_F"), std::string::npos);
  EXPECT_NE(text(schedule).find("3RECV_F2,0RECV_B0,(3F2;0B0)OVERLAP_F_B,3B2"), std::string::npos)
      << text(schedule);
  EXPECT_NE(text(schedule).find("(2F2;1B0)OVERLAP_F_B,2SEND_F2,1SEND_B0,"), std::string::npos)
      << text(schedule);
}

TEST(SchedulePasses, TransfersWhenSentNeedNoNames) {
  for (const auto& schedule : {one_f_one_b(4, 8), interleaved_1f1b(4, 8, 2), zb_h1(4, 8), zbv(4, 8),
                               dual_pipe_v(4, 8), gpipe(4, 8)}) {
    const auto made = add_transfers_when_sent(schedule);
    ASSERT_NO_THROW(check_schedule(made));
    std::map<std::pair<int, int>, std::vector<std::string>> sent, received;
    std::map<int, int> rank_of;
    for (int rank = 0; rank < 4; ++rank) {
      for (const auto& cell : made[static_cast<std::size_t>(rank)]) {
        for (const auto& action : cell) rank_of[action.stage] = rank;
      }
    }
    for (int rank = 0; rank < 4; ++rank) {
      for (const auto& cell : made[static_cast<std::size_t>(rank)]) {
        const auto& [kind, stage, micro_batch] = cell[0];
        const auto of = [&, m = micro_batch](int sender, char direction) {
          return std::to_string(sender) + direction + std::to_string(m);
        };
        if (kind == ActionKind::kSendForward)
          sent[{rank, rank_of[stage + 1]}].push_back(of(stage, 'F'));
        if (kind == ActionKind::kSendBackward)
          sent[{rank, rank_of[stage - 1]}].push_back(of(stage, 'B'));
        if (kind == ActionKind::kRecvForward) {
          received[{rank_of[stage - 1], rank}].push_back(of(stage - 1, 'F'));
        }
        if (kind == ActionKind::kRecvBackward) {
          received[{rank_of[stage + 1], rank}].push_back(of(stage + 1, 'B'));
        }
      }
    }
    EXPECT_EQ(sent, received);
  }
}

TEST(SchedulePasses, TransfersAreAddedOnce) {
  const auto schedule = add_transfers(one_f_one_b(2, 2));
  EXPECT_EQ(message_of<ValueError>([&] { add_transfers(schedule); }),
            "add_transfers: must be given a schedule without transfers, got one with them");
  EXPECT_EQ(
      message_of<ValueError>([&] { add_transfers_when_sent(schedule); }),
      "add_transfers_when_sent: must be given a schedule without transfers, got one with them");
  EXPECT_EQ(message_of<ValueError>([&] { add_recompute(schedule, {0}); }),
            "add_recompute: must be given a schedule without transfers, got one with them");
  EXPECT_EQ(message_of<ValueError>([&] { add_unshard(schedule, 1); }),
            "add_unshard: must be given a schedule without transfers, got one with them");
  EXPECT_EQ(message_of<ValueError>(
                [] { add_transfers_when_sent(parsed("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n")); }),
            "add_transfers_when_sent: row 0, cell 1: ranks wait for each other, so that this cell "
            "never runs");
  EXPECT_EQ(message_of<ValueError>([] { add_transfers_when_sent(parsed("1F0,0F0,1B0,0B0\n")); }),
            "add_transfers_when_sent: row 0, cell 0: ranks wait for each other, so that this cell "
            "never runs");
}

TEST(SchedulePasses, RecomputationComesBeforeBackward) {
  EXPECT_EQ(text(add_recompute(parsed("0F0,1F0,(0F1;1B0)OVERLAP_F_B,0I0,1F1,1B1,0W0,0B1\n"), {1})),
            "0F0,1F0,1R0,(0F1;1B0)OVERLAP_F_B,0I0,1F1,1R1,1B1,0W0,0B1\n");
  EXPECT_EQ(text(add_transfers(add_recompute(one_f_one_b(2, 1), {0, 1}))),
            "0F0,0SEND_F0,0R0,0RECV_B0,0B0\n1RECV_F0,1F0,1R0,1B0,1SEND_B0\n");
  EXPECT_EQ(message_of<ValueError>([] { add_recompute(one_f_one_b(2, 1), {2}); }),
            "add_recompute: a stage must be from 0 to 1, got 2");
  EXPECT_EQ(message_of<ValueError>([] { add_recompute(one_f_one_b(2, 1), {-1}); }),
            "add_recompute: a stage must be from 0 to 1, got -1");
}

TEST(SchedulePasses, GathersKeepWhatComesNext) {
  EXPECT_EQ(text(add_unshard(parsed("0F0,1F0,1B0,0B0\n"), 1)),
            "0UNSHARD,0F0,0RESHARD,1UNSHARD,1F0,1B0,1RESHARD,0UNSHARD,0B0,0RESHARD\n");
  EXPECT_EQ(text(add_unshard(parsed("0F0,1F0,1B0,0B0\n"), 2)),
            "0UNSHARD,1UNSHARD,0F0,1F0,1B0,1RESHARD,0B0,0RESHARD\n");
  EXPECT_EQ(message_of<ValueError>([] { add_unshard(one_f_one_b(2, 1), 0); }),
            "add_unshard: at least 1 stages must be gathered at once, got 0");
  EXPECT_EQ(message_of<ValueError>([] { add_unshard(dual_pipe_v(2, 4), 1); }),
            "add_unshard: at least 2 stages must be gathered at once, got 1");
  EXPECT_EQ(
      message_of<ValueError>([] { add_unshard(parsed("0F0\n1F0,(2F0;1B0)OVERLAP_F_B\n"), 1); }),
      "add_unshard: at least 2 stages must be gathered at once, got 1");
}

TEST(SchedulePasses, GathersAreAsManyAsPyTorchs) {
  // Its test counts the gathers of stage 15: four with three stages at once, one with four.
  const auto schedule = interleaved_1f1b(4, 16, 4);
  const auto gathers = [&](int most) {
    const auto made = add_unshard(schedule, most);
    check_schedule(made);
    return std::ranges::count(made[3], Cell{{.kind = ActionKind::kUnshard, .stage = 15}});
  };
  EXPECT_EQ(gathers(3), 4);
  EXPECT_EQ(gathers(4), 1);
}

TEST(SchedulePasses, NoMoreStagesAreGatheredThanAllowed) {
  for (const auto& schedule : {interleaved_1f1b(2, 4, 4), dual_pipe_v(4, 8), zbv(3, 6)}) {
    for (int most = 2; most <= 4; ++most) {
      const auto made = add_unshard(schedule, most);
      EXPECT_NO_THROW(check_schedule(made));
      for (const auto& row : made) {
        int gathered = 0;
        for (const auto& cell : row) {
          gathered += cell[0].kind == ActionKind::kUnshard;
          gathered -= cell[0].kind == ActionKind::kReshard;
          EXPECT_LE(gathered, most);
        }
        EXPECT_EQ(gathered, 0);
      }
    }
  }
}

TEST(SchedulePasses, GradientsAreReducedAfterTheirLastSum) {
  EXPECT_EQ(text(add_reduce_grad(one_f_one_b(2, 2))),
            "0F0,0F1,0B0,0B1,0REDUCE_GRAD\n1F0,1B0,1F1,1B1,1REDUCE_GRAD\n");
  EXPECT_EQ(text(add_reduce_grad(parsed("0F0,1F0,1I0,0I0,0W0,1W0\n"))),
            "0F0,1F0,1I0,0I0,0W0,0REDUCE_GRAD,1W0,1REDUCE_GRAD\n");
  EXPECT_EQ(text(add_reduce_grad(parsed("0F0,1F0,(0F1;1B0)OVERLAP_F_B,0B0,1F1,1B1,0B1\n"))),
            "0F0,1F0,(0F1;1B0)OVERLAP_F_B,0B0,1F1,1B1,1REDUCE_GRAD,0B1,0REDUCE_GRAD\n");
  EXPECT_EQ(text(add_reduce_grad(parsed("0F0,1F0,1F1,1B1,(0F1;1B0)OVERLAP_F_B,0B0,0B1\n"))),
            "0F0,1F0,1F1,1B1,(0F1;1B0)OVERLAP_F_B,1REDUCE_GRAD,0B0,0B1,0REDUCE_GRAD\n");
}

TEST(SchedulePasses, AllTogetherAreASchedule) {
  for (const auto& name : generator_names()) {
    const auto schedule = make_schedule(name, {.ranks = 4, .micro_batches = 8});
    const auto made =
        add_transfers(add_reduce_grad(add_unshard(add_recompute(schedule, {0, 3}), 2)));
    EXPECT_NO_THROW(check_schedule(made, {.copies = name == "DualPipe" ? 2 : 1})) << name;
  }
}

}  // namespace
}  // namespace moegrad::passes_test
