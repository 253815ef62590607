// SPDX-License-Identifier: Apache-2.0
#include "plan/schedule/generators.h"

#include "framework/runtime/error.h"
#include "plan/schedule/schedule_csv.h"
#include "tests/plan/schedule/golden_schedules.h"
#include "tests/testing.h"

namespace moegrad::generators_test {
namespace {

using namespace plan;
using test::message_of;

/// A row as its file has it.
std::string row(const Schedule& schedule, std::size_t rank) {
  auto text = to_csv({.schedule = {schedule[rank]}});
  text.pop_back();
  return text;
}

TEST(Generators, GPipeRunsAllForwardsFirst) {
  EXPECT_EQ(to_csv({.schedule = gpipe(2, 3)}),
            "0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1F1,1F2,1B0,1B1,1B2\n");
}

TEST(Generators, OneForwardOneBackward) {
  const auto schedule = one_f_one_b(4, 6);
  EXPECT_EQ(row(schedule, 0), "0F0,0F1,0F2,0F3,0B0,0F4,0B1,0F5,0B2,0B3,0B4,0B5");
  EXPECT_EQ(row(schedule, 2), "2F0,2F1,2B0,2F2,2B1,2F3,2B2,2F4,2B3,2F5,2B4,2B5");
  EXPECT_EQ(row(schedule, 3), "3F0,3B0,3F1,3B1,3F2,3B2,3F3,3B3,3F4,3B4,3F5,3B5");
}

TEST(Generators, FewerMicroBatchesThanRanksAreAllWarmUp) {
  EXPECT_EQ(row(one_f_one_b(4, 2), 0), "0F0,0F1,0B0,0B1");
  EXPECT_EQ(row(one_f_one_b(4, 2), 3), "3F0,3B0,3F1,3B1");
}

TEST(Generators, InterleavedIsTheGoldenOrder) {
  const auto schedule = interleaved_1f1b(2, 4, 2);
  EXPECT_EQ(row(schedule, 0), "0F0,0F1,2F0,2F1,0F2,2B0,0F3,2B1,2F2,0B0,2F3,0B1,2B2,2B3,0B2,0B3");
  EXPECT_EQ(row(schedule, 1), "1F0,1F1,3F0,3B0,3F1,3B1,1F2,1B0,1F3,1B1,3F2,3B2,3F3,3B3,1B2,1B3");
}

TEST(Generators, InterleavedInLargerGroups) {
  // A group of 3, and a last one of 2.
  EXPECT_EQ(row(interleaved_1f1b(2, 5, 2, 3), 1),
            "1F0,1F1,1F2,3F0,3B0,3F1,3B1,3F2,3B2,1F3,1B0,1F4,1B1,3F3,1B2,3F4,3B3,3B4,1B3,1B4");
}

TEST(Generators, ZeroBubbleIsTheGoldenOrder) {
  const auto schedule = zb_h1(4, 6);
  EXPECT_EQ(row(schedule, 2),
            "2F0,2F1,2I0,2F2,2I1,2F3,2I2,2W0,2F4,2I3,2W1,2F5,2I4,2W2,2I5,2W3,2W4,2W5");
  EXPECT_EQ(row(schedule, 0),
            "0F0,0F1,0F2,0F3,0I0,0W0,0F4,0I1,0W1,0F5,0I2,0W2,0I3,0W3,0I4,0W4,0I5,0W5");
}

TEST(Generators, DualPipeVOfTwoRanksIsTheGoldenOrder) {
  const auto schedule = dual_pipe_v(2, 4);
  EXPECT_EQ(row(schedule, 0),
            "0F0,0F1,0F2,3F0,3I0,3W0,3F1,(0F3;3B1)OVERLAP_F_B,(3F2;0B0)OVERLAP_F_B,3B2,"
            "(3F3;0B1)OVERLAP_F_B,3B3,0I2,0W2,0I3,0W3");
  EXPECT_EQ(row(schedule, 1),
            "1F0,2F0,1F1,2F1,1F2,2B0,(2F2;1B0)OVERLAP_F_B,(1F3;2B1)OVERLAP_F_B,"
            "(2F3;1B1)OVERLAP_F_B,2B2,1B2,2I3,1I3,2W3,1W3");
}

TEST(Generators, DualPipeVOfFourRanksIsPyTorchsFile) {
  const auto golden = read_schedule(test::golden_schedule("dualpipev_4rank_10mb")).schedule;
  const auto schedule = dual_pipe_v(4, 10);
  EXPECT_EQ(first_difference(schedule, golden), std::nullopt);
  EXPECT_EQ(schedule, golden);
}

TEST(Generators, DualPipeSendsHalfTheMicroBatchesDownwards) {
  const auto schedule = dual_pipe(4, 8);
  // Rank 3 does with stage 0 of the second half what rank 0 does with stage 0 of the first.
  EXPECT_EQ(row(schedule, 0),
            "0F0,0F1,0F2,3F4,3I4,3W4,3F5,(0F3;3B5)OVERLAP_F_B,(3F6;0B0)OVERLAP_F_B,3B6,"
            "(3F7;0B1)OVERLAP_F_B,3B7,0I2,0W2,0I3,0W3");
  EXPECT_EQ(row(schedule, 3),
            "0F4,0F5,0F6,3F0,3I0,3W0,3F1,(0F7;3B1)OVERLAP_F_B,(3F2;0B4)OVERLAP_F_B,3B2,"
            "(3F3;0B5)OVERLAP_F_B,3B3,0I6,0W6,0I7,0W7");
}

TEST(Generators, ZeroBubbleVIsPyTorchsOrder) {
  EXPECT_EQ(row(zbv(2, 3), 0),
            "0F0,0F1,0F2,3F0,3I0,3W0,3F1,3I1,3W1,0I0,0W0,3F2,3I2,3W2,0I1,0W1,0I2,0W2");
  EXPECT_EQ(row(zbv(2, 3), 1),
            "1F0,2F0,1F1,2F1,2I0,2W0,1F2,1I0,1W0,2F2,2I1,2W1,1I1,2I2,1I2,1W1,2W2,1W2");
}

TEST(Generators, AreMadeByName) {
  EXPECT_EQ(make_schedule("gpipe", {.ranks = 2, .micro_batches = 3}), gpipe(2, 3));
  EXPECT_EQ(make_schedule("1f1b", {.ranks = 4, .micro_batches = 6}), one_f_one_b(4, 6));
  EXPECT_EQ(
      make_schedule("Interleaved1F1B", {.ranks = 2, .micro_batches = 4, .stages_per_rank = 3}),
      interleaved_1f1b(2, 4, 3));
  EXPECT_EQ(make_schedule("Interleaved1F1B", {.ranks = 2, .micro_batches = 4}),
            interleaved_1f1b(2, 4, 2));
  EXPECT_EQ(make_schedule("interleaved1f1b",
                          {.ranks = 2, .micro_batches = 5, .stages_per_rank = 2, .group = 3}),
            interleaved_1f1b(2, 5, 2, 3));
  EXPECT_EQ(make_schedule("zb-h1", {.ranks = 4, .micro_batches = 6}), zb_h1(4, 6));
  EXPECT_EQ(make_schedule("ZBVZEROBUBBLE", {.ranks = 2, .micro_batches = 4}), zbv(2, 4));
  EXPECT_EQ(make_schedule("dualpipev", {.ranks = 2, .micro_batches = 4}), dual_pipe_v(2, 4));
  EXPECT_EQ(make_schedule("DualPipe", {.ranks = 2, .micro_batches = 4}), dual_pipe(2, 4));
  EXPECT_EQ(message_of<ValueError>([] { make_schedule("1F1", {}); }),
            "make_schedule: the name must be one of GPipe, 1F1B, Interleaved1F1B, ZB-H1, "
            "ZBVZeroBubble, DualPipeV, DualPipe, got '1F1'");
  EXPECT_EQ(message_of<ValueError>([] { make_schedule("gpipe", {.stages_per_rank = 2}); }),
            "gpipe: stages_per_rank and group are for Interleaved1F1B alone, got 2 and 0");
  for (const auto& name : generator_names()) {
    EXPECT_NO_THROW(make_schedule(name, {})) << name;
    if (name == "Interleaved1F1B") continue;
    EXPECT_THROW(make_schedule(name, {.group = 4}), ValueError) << name;
  }
}

TEST(Generators, RefuseWhatTheyCannotDivide) {
  const auto refused = [](const auto& make) { return message_of<ValueError>(make); };
  EXPECT_EQ(refused([] { gpipe(0, 3); }), "GPipe: needs at least 1 rank, got 0");
  EXPECT_EQ(refused([] { gpipe(2, 0); }), "GPipe: 2 ranks need at least 1 micro-batches, got 0");
  EXPECT_EQ(refused([] { one_f_one_b(2, -1); }),
            "1F1B: 2 ranks need at least 1 micro-batches, got -1");
  EXPECT_EQ(refused([] { zb_h1(4, 3); }), "ZB-H1: 4 ranks need at least 4 micro-batches, got 3");
  EXPECT_EQ(refused([] { zbv(2, 0); }),
            "ZBVZeroBubble: 2 ranks need at least 1 micro-batches, got 0");
  EXPECT_EQ(refused([] { dual_pipe_v(4, 7); }),
            "DualPipeV: 4 ranks need at least 8 micro-batches, got 7");
  EXPECT_EQ(refused([] { dual_pipe(4, 6); }),
            "DualPipe: 4 ranks need at least 8 micro-batches, got 6");
  EXPECT_EQ(refused([] { dual_pipe(3, 6); }), "DualPipe: needs an even number of ranks, got 3");
  EXPECT_EQ(refused([] { dual_pipe(4, 9); }),
            "DualPipe: needs an even number of micro-batches, got 9");
  EXPECT_EQ(refused([] { interleaved_1f1b(4, 3, 2); }),
            "Interleaved1F1B: 4 ranks need at least 4 micro-batches, got 3");
  EXPECT_EQ(refused([] { interleaved_1f1b(4, 4, 0); }),
            "Interleaved1F1B: stages per rank must be from 1 to 16384, got 0");
  EXPECT_EQ(refused([] { interleaved_1f1b(3, 3, 21846); }),
            "Interleaved1F1B: stages per rank must be from 1 to 21845, got 21846");
  EXPECT_EQ(refused([] { dual_pipe_v(1 << 30, 1 << 30); }),
            "DualPipeV: ranks must be at most 32768 and micro-batches 16777216, got 1073741824 and "
            "1073741824");
  EXPECT_EQ(refused([] { gpipe(1, (1 << 24) + 1); }),
            "GPipe: ranks must be at most 32768 and micro-batches 16777216, got 1 and 16777217");
  EXPECT_EQ(refused([] { interleaved_1f1b(4, 8, 2, 3); }),
            "Interleaved1F1B: a group must be of as many micro-batches as ranks at least, and of "
            "all at most, so from 4 to 8, got 3");
  EXPECT_EQ(refused([] { interleaved_1f1b(4, 8, 2, 9); }),
            "Interleaved1F1B: a group must be of as many micro-batches as ranks at least, and of "
            "all at most, so from 4 to 8, got 9");
  EXPECT_EQ(
      refused([] { interleaved_1f1b(4, 6, 2); }),
      "Interleaved1F1B: groups of 4 must divide 6 micro-batches or leave as many as ranks, 4, "
      "at least, got 2 in the last");
}

}  // namespace
}  // namespace moegrad::generators_test
