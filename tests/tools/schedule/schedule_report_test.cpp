// SPDX-License-Identifier: Apache-2.0
#include "tools/schedule/schedule_report.h"

#include "plan/schedule/generators.h"
#include "plan/schedule/passes.h"
#include "tests/testing.h"

namespace moegrad::tools::schedule_report_test {
namespace {

TEST(ScheduleReport, SaysWhatASimulationFound) {
  const auto schedule = plan::one_f_one_b(2, 2);
  EXPECT_EQ(
      schedule_report("1F1B", schedule, simulate(schedule, {.stages = {{.activation_bytes = 8}}}),
                      /*critical_path=*/true),
      "schedule        1F1B, 2 ranks, 2 stages, 2 micro-batches\n"
      "deadlock        none\n"
      "makespan        9\n"
      "bubble          33.3 % of all ranks' time\n"
      "rank        busy      bubble  activations  peak bytes\n"
      "   0           6           3            2          16\n"
      "   1           6           3            1           8\n"
      "critical path    0F0 1F0 1B0 1F1 1B1 0B1\n");
}

TEST(ScheduleReport, CountsRanksStagesAndMicroBatches) {
  // Stage 0, on rank 0, takes a forward of 2.
  const auto schedule = plan::interleaved_1f1b(2, 3, 2, 3);
  const plan::StageCost cost = {.activation_bytes = 8};
  auto first = cost;
  first.forward = 2;
  EXPECT_EQ(
      schedule_report("V", schedule, simulate(schedule, {.stages = {first, cost, cost, cost}}),
                      /*critical_path=*/false),
      "schedule        V, 2 ranks, 4 stages, 3 micro-batches\n"
      "deadlock        none\n"
      "makespan        24\n"
      "bubble          18.8 % of all ranks' time\n"
      "rank        busy      bubble  activations  peak bytes\n"
      "   0          21           3            6          48\n"
      "   1          18           6            4          32\n");
}

TEST(ScheduleReport, KeepsLargeNumbersApart) {
  const auto schedule = plan::one_f_one_b(1, 1);
  const auto text = schedule_report(
      "", schedule, simulate(schedule, {.stages = {{.activation_bytes = 123456789012345}}}), false);
  EXPECT_TRUE(text.ends_with("   0           3           0            1 123456789012345\n"))
      << text;
}

TEST(ScheduleReport, ListsAPairOfTheCriticalPathAsOne) {
  const auto schedule = plan::dual_pipe_v(1, 2);
  const auto path = [&](bool pairs_in_turn) {
    const auto simulation = simulate(schedule, {.pairs_in_turn = pairs_in_turn});
    const auto text = schedule_report("", schedule, simulation, true);
    return text.substr(text.find("critical path"));
  };
  EXPECT_EQ(path(false), "critical path    0F0 1F0 0F1 1B0 (1F1;0B0)OVERLAP_F_B 1B1 0I1 0W1\n");
  EXPECT_EQ(path(true), "critical path    0F0 1F0 0F1 1B0 1F1 0B0 1B1 0I1 0W1\n");
}

TEST(ScheduleReport, SaysHowManyBuffersTransfersNeed) {
  const auto line = [](const plan::Schedule& schedule) {
    const auto text = schedule_report("", schedule, simulate(schedule), false);
    const auto begin = text.find("deadlock");
    return text.substr(begin, text.find('\n', begin) - begin);
  };
  EXPECT_EQ(line(plan::add_transfers(plan::one_f_one_b(2, 3))),
            "deadlock        none with as many buffers from rank to rank as 1");
  EXPECT_EQ(line(plan::add_transfers_when_sent(plan::one_f_one_b(2, 3))),
            "deadlock        none, also where each SEND waits for its RECV");
}

}  // namespace
}  // namespace moegrad::tools::schedule_report_test
