// SPDX-License-Identifier: Apache-2.0
#include "plan/schedule/schedule_csv.h"

#include <fstream>
#include <iterator>

#include "framework/runtime/error.h"
#include "tests/plan/schedule/golden_schedules.h"
#include "tests/testing.h"

namespace moegrad::schedule_csv_test {
namespace {

using namespace plan;
using test::golden_schedule, test::message_of;

std::string refused(std::string_view text) {
  return message_of<ValueError>([&] { read_schedule(text); });
}

TEST(ScheduleCsv, PyTorchsFilesComeBackByteForByte) {
  for (const auto* name : test::kGoldenSchedules) {
    const auto text = golden_schedule(name);
    EXPECT_EQ(to_csv(read_schedule(text)), text) << name;
  }
}

TEST(ScheduleCsv, PyTorchsFilesHaveTheseActions) {
  const auto dual = read_schedule(golden_schedule("dualpipev_4rank_10mb"));
  EXPECT_EQ(dual.letters, Letters::kInputI);
  ASSERT_EQ(dual.schedule.size(), 4u);
  EXPECT_EQ(dual.schedule[0].size(), 38u);
  EXPECT_EQ(dual.schedule[1].size(), 36u);
  EXPECT_EQ(dual.schedule[2].size(), 34u);
  EXPECT_EQ(dual.schedule[3].size(), 33u);
  EXPECT_EQ(size_of(dual.schedule), (ScheduleSize{.ranks = 4, .stages = 8, .micro_batches = 10}));
  EXPECT_EQ(dual.schedule[0][17],
            (Cell{{.kind = ActionKind::kForward, .stage = 0, .micro_batch = 7},
                  {.kind = ActionKind::kFullBackward, .stage = 7, .micro_batch = 3}}));
  const auto compute = read_schedule(golden_schedule("zb1p_2rank_2stagep_compute"));
  EXPECT_EQ(compute.letters, Letters::kInputB);
  EXPECT_EQ(to_string(compute.schedule[0][5]), "2I0");
  EXPECT_TRUE(compute.schedule[0][3].empty()) << "an idle cell";
  EXPECT_FALSE(has_transfers(compute.schedule));
  const auto comms = read_schedule(golden_schedule("zb1p_2rank_2stagep_comms"));
  EXPECT_EQ(comms.letters, Letters::kInputB);
  EXPECT_EQ(to_string(comms.schedule[0][11]), "2B0");
  EXPECT_EQ(to_string(comms.schedule[1][9]), "3I0");
  EXPECT_TRUE(has_transfers(comms.schedule));
}

TEST(ScheduleCsv, EveryActionComesBack) {
  const std::string text =
      "0F0,0I1,0W2,0B3,0R4,0SEND_F5,1RECV_F5,1SEND_B6,0RECV_B6,2UNSHARD,2RESHARD,3REDUCE_GRAD,,"
      "(0F8;7B4)OVERLAP_F_B,(0F8;7I4)OVERLAP_F_B,65535F16777215\n";
  EXPECT_EQ(to_csv(read_schedule(text)), text);
}

TEST(ScheduleCsv, AFileMayNameItsLetters) {
  const auto older = read_schedule("# letters: F B W BW\n0F0,0B0\n");
  EXPECT_EQ(older.letters, Letters::kInputB);
  EXPECT_EQ(older.schedule[0][1][0].kind, ActionKind::kBackwardInput);
  EXPECT_EQ(to_csv(older), "# letters: F B W BW\n0F0,0B0\n");
  const std::string pairs = "(0F1;1BW0)OVERLAP_F_B,(0F2;1B1)OVERLAP_F_B,1W1\n";
  EXPECT_EQ(to_csv(read_schedule(pairs)), pairs);
  const auto newer = read_schedule("# letters: F I W B\n0F0,0B0,0W1\n");
  EXPECT_EQ(newer.schedule[0][1][0].kind, ActionKind::kFullBackward);
  EXPECT_EQ(
      refused("# letters: F I W B\n0F0,0BW0\n"),
      "read_schedule: row 0, cell 1: must be a stage, an action and a micro-batch, such as 2F0, "
      "with one of the letters F I W B R SEND_F RECV_F SEND_B RECV_B UNSHARD RESHARD REDUCE_GRAD, "
      "got '0BW0'");
  EXPECT_EQ(refused("# letters: F B W BW\n"),
            "read_schedule: must have at least one row, got none");
  EXPECT_EQ(
      refused("# F B W\n0F0\n"),
      "read_schedule: a first line with # must be '# letters: F I W B' or '# letters: F B W BW', "
      "got '# F B W'");
}

TEST(ScheduleCsv, LettersWithoutANameAreKnownByWhatIsThere) {
  EXPECT_EQ(read_schedule("0F0,0B0\n").letters, Letters::kInputI);
  EXPECT_EQ(read_schedule("0F0,0I0,0W0\n").letters, Letters::kInputI);
  EXPECT_EQ(read_schedule("0F0,0BW0\n").letters, Letters::kInputB);
  EXPECT_EQ(read_schedule("0F0,0B0,0W0\n").letters, Letters::kInputB);
  EXPECT_EQ(
      refused("0F0,0BW0,0I1\n"),
      "read_schedule: row 0, cell 2: must be a stage, an action and a micro-batch, such as 2F0, "
      "with one of the letters F B W BW R SEND_F RECV_F SEND_B RECV_B UNSHARD RESHARD "
      "REDUCE_GRAD, got '0I1'");
}

TEST(ScheduleCsv, LinesMayEndAsPythonEndsThem) {
  const std::string text = "0F0,0B0\r\n1F0,1B0\r\n";
  const auto file = read_schedule(text);
  EXPECT_EQ(file.schedule, read_schedule("0F0,0B0\n1F0,1B0\n").schedule);
  EXPECT_EQ(to_csv(file), text);
  const std::string with_heading = "# letters: F I W B\r\n" + text;
  EXPECT_EQ(to_csv(read_schedule(with_heading)), with_heading);
  EXPECT_EQ(refused("0F0,0B0\r\n1F0,1B0\n"),
            "read_schedule: line 1: must end as line 0 does, with carriage return");
  EXPECT_EQ(refused("0F0,0B0\n1F0,1B0\r\n"),
            "read_schedule: line 1: must end as line 0 does, with no carriage return");
}

TEST(ScheduleCsv, FilesWithoutContentsAreRefused) {
  EXPECT_EQ(refused(""), "read_schedule: must have at least one row, got an empty file");
  EXPECT_EQ(refused("\n"), "read_schedule: row 0: must have at least one action, got none");
  EXPECT_EQ(refused("0F0,0B0\n,,\n1F0\n"),
            "read_schedule: row 1: must have at least one action, got none");
  EXPECT_EQ(refused("0F0,0B0\n1F0,1B0"),
            "read_schedule: the last line must have an end; the file was cut short");
}

TEST(ScheduleCsv, CellsThatAreNoActionsAreRefused) {
  const std::string letters =
      "must be a stage, an action and a micro-batch, such as 2F0, with one of the letters F I W B "
      "R "
      "SEND_F RECV_F SEND_B RECV_B UNSHARD RESHARD REDUCE_GRAD, got ";
  const auto cell = [](const std::string& what) { return "read_schedule: row 1, cell 1: " + what; };
  const auto second = [](const std::string& text) { return refused("0F0\n1F0," + text + "\n"); };
  EXPECT_EQ(second("2X0"), cell(letters + "'2X0'"));
  EXPECT_EQ(second("2f0"), cell(letters + "'2f0'"));
  EXPECT_EQ(second("20"), cell(letters + "'20'"));
  const std::string characters =
      "must be of digits, letters and _ alone, without spaces or quotes, got ";
  EXPECT_EQ(second("2 F0"), cell(characters + "'2 F0'"));
  EXPECT_EQ(second(" 2F0"), cell(characters + "' 2F0'"));
  EXPECT_EQ(second("2F-1"), cell(characters + "'2F-1'"));
  EXPECT_EQ(second("\"2F0\""), cell(characters + "'\"2F0\"'"));
  EXPECT_EQ(second(std::string("2F0\0", 4)), cell(characters + "'2F0\\x00'"));
  EXPECT_LT(second(std::string(6000, 'F')).size(), 300u);
  EXPECT_EQ(second("F0"), cell("must begin with the number of a stage, got 'F0'"));
  EXPECT_EQ(second("2F"), cell("must end with the number of a micro-batch, got '2F'"));
  EXPECT_EQ(second("2UNSHARD0"), cell("UNSHARD must have no micro-batch, got '2UNSHARD0'"));
  EXPECT_EQ(second("65536F0"),
            cell("the stage must be from 0 to 65535 without leading zeros, got '65536'"));
  EXPECT_EQ(second("02F0"),
            cell("the stage must be from 0 to 65535 without leading zeros, got '02'"));
  EXPECT_EQ(
      second("2F16777216"),
      cell("the micro-batch must be from 0 to 16777215 without leading zeros, got '16777216'"));
  EXPECT_EQ(second("2F99999999999999999999"),
            cell("the micro-batch must be from 0 to 16777215 without leading zeros, got "
                 "'99999999999999999999'"));
}

TEST(ScheduleCsv, PairsThatAreNoneAreRefused) {
  const auto cell = [](const std::string& what) { return "read_schedule: row 0, cell 0: " + what; };
  EXPECT_EQ(refused("(0F8;7B4)\n"), cell("a pair must end with )OVERLAP_F_B, got '(0F8;7B4)'"));
  EXPECT_EQ(
      refused("(0F8)OVERLAP_F_B\n"),
      cell("a pair must be two actions with a semicolon between them, got '(0F8)OVERLAP_F_B'"));
  EXPECT_EQ(refused("(0F8;7B4;7F5)OVERLAP_F_B\n"),
            cell("a pair must be two actions with a semicolon between them, got "
                 "'(0F8;7B4;7F5)OVERLAP_F_B'"));
  for (const auto* pair :
       {"(7B4;0F8)OVERLAP_F_B", "(0F8;7F4)OVERLAP_F_B", "(0F8;7W4)OVERLAP_F_B",
        "(0F8;7UNSHARD)OVERLAP_F_B", "(7B4;0B8)OVERLAP_F_B", "(7W4;0I8)OVERLAP_F_B"}) {
    EXPECT_EQ(refused(std::string("# letters: F I W B\n") + pair + "\n"),
              cell("a pair must be a forward and then a backward that makes the gradient of a "
                   "stage's input, got '" +
                   std::string(pair) + "'"));
  }
  EXPECT_EQ(refused("(0F8;)OVERLAP_F_B\n").substr(0, 30), "read_schedule: row 0, cell 0: ");
}

TEST(ScheduleCsv, TheFirstDifferenceIsNamed) {
  const auto text = golden_schedule("dualpipev_4rank_10mb");
  const auto golden = read_schedule(text).schedule;
  EXPECT_EQ(first_difference(golden, golden), std::nullopt);
  auto other = golden;
  other[3].pop_back();
  EXPECT_EQ(first_difference(golden, other), "row 3, cell 32: 3W9 against no cell");
  other = golden;
  other.pop_back();
  EXPECT_EQ(first_difference(golden, other), "row 3, cell 0: 3F0 against no row");
  EXPECT_EQ(first_difference(other, golden), "row 3, cell 0: no row against 3F0");
  other = golden;
  std::swap(other[1][3], other[1][4]);
  EXPECT_EQ(first_difference(golden, other), "row 1, cell 3: 1F3 against 1F4");
  other = golden;
  other[0][1].clear();
  EXPECT_EQ(first_difference(golden, other), "row 0, cell 1: 0F1 against an idle cell");
}

}  // namespace
}  // namespace moegrad::schedule_csv_test
