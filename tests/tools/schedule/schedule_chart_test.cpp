// SPDX-License-Identifier: Apache-2.0
#include "tools/schedule/schedule_chart.h"

#include "plan/schedule/generators.h"
#include "plan/schedule/passes.h"
#include "tests/testing.h"

namespace moegrad::tools::schedule_chart_test {
namespace {

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

/// The box of the action of this name, without the name.
std::string box(const std::string& svg, const std::string& name) {
  const auto end = svg.find("<title>" + name + "</title>");
  const auto begin = svg.rfind("<rect ", end);
  return svg.substr(begin, end - begin);
}

std::string chart(const plan::Schedule& schedule, const plan::SimulationOptions& options = {}) {
  return schedule_chart("a < b", simulate(schedule, options));
}

TEST(ScheduleChart, HasABoxForEachActionAndALineForEachMessage) {
  const auto svg = chart(plan::one_f_one_b(2, 3));
  EXPECT_EQ(count(svg, "<title>"), 12u);
  EXPECT_EQ(count(svg, "<title>1B2</title>"), 1u);
  // Boxes and the legend.
  EXPECT_EQ(count(svg, "#4285f4"), 6u + 1);
  EXPECT_EQ(count(svg, "#f29900"), 6u + 1);
  // 3 forwards and 3 gradients from one rank to the other.
  const auto begin = svg.find("<path d=\"M") + 9;
  EXPECT_EQ(count(svg.substr(begin, svg.find('"', begin) - begin), "M"), 6u);
  EXPECT_EQ(count(svg, "a &lt; b: makespan 12"), 1u);
  EXPECT_EQ(count(svg, "bubble 25.0 %, peak 0"), 2u);
  EXPECT_EQ(count(svg, "y=\"100.0\" text-anchor=\"end\">rank 1</text>"), 1u);
}

TEST(ScheduleChart, DrawsThePlacesOfBoxes) {
  const auto svg = chart(plan::one_f_one_b(1, 1));
  // F is a third of the width, at the left; B the rest.
  EXPECT_EQ(
      count(svg, "<rect x=\"60.00\" y=\"56.0\" width=\"246.67\" height=\"20.0\" fill=\"#4285f4\""),
      1u);
  EXPECT_EQ(
      count(svg, "<rect x=\"306.67\" y=\"56.0\" width=\"493.33\" height=\"20.0\" fill=\"#f29900\""),
      1u);
}

TEST(ScheduleChart, DrawsAMessageFromTheEndOfOneBoxToTheBeginningOfAnother) {
  // F0 ends at 1 of 8 below rank 0; 1B0 ends at 5, above rank 1.
  EXPECT_EQ(count(chart(plan::one_f_one_b(2, 1), {.latency = 1}),
                  "<path d=\"M152.5,76.0L245.0,86.0M522.5,86.0L615.0,76.0\""),
            1u);
  // The reader of the gradient is I.
  EXPECT_EQ(count(chart(plan::zb_h1(2, 2), {.latency = 1}), ",86.0L"), 2u);
  // Stages of one rank need none.
  EXPECT_EQ(count(chart(plan::dual_pipe_v(1, 2)), "<path d=\"\""), 1u);
}

TEST(ScheduleChart, HasAColourForEachKindOfAction) {
  const auto svg = chart(plan::add_recompute(plan::zb_h1(1, 1), {0}));
  EXPECT_EQ(count(box(svg, "0F0"), "#4285f4"), 1u);
  EXPECT_EQ(count(box(svg, "0R0"), "#8a939c"), 1u);
  EXPECT_EQ(count(box(svg, "0I0"), "#16a5a5"), 1u);
  EXPECT_EQ(count(box(svg, "0W0"), "#34a853"), 1u);
  const auto name_of = [&](const std::string& colour) {
    const auto text = svg.find("<text", svg.find(colour + "\"/>"));
    const auto begin = svg.find('>', text) + 1;
    return svg.substr(begin, svg.find('<', begin) - begin);
  };
  EXPECT_EQ(name_of("#4285f4"), "F");
  EXPECT_EQ(name_of("#16a5a5"), "I");
  EXPECT_EQ(name_of("#34a853"), "W");
  EXPECT_EQ(name_of("#f29900"), "B");
  EXPECT_EQ(name_of("#8a939c"), "R");
  EXPECT_EQ(name_of("#8250df"), "UNSHARD");
  EXPECT_EQ(name_of("#9a6700"), "REDUCE_GRAD");
}

TEST(ScheduleChart, WritesMicroBatchesIntoBoxes) {
  const auto svg = chart(plan::one_f_one_b(2, 3));
  EXPECT_EQ(count(svg, "font-size: 11px\">0</text>"), 4u);
  EXPECT_EQ(count(svg, "font-size: 11px\">2</text>"), 4u);
  // Boxes of 60 forwards are too narrow for a digit, those of backwards for two.
  EXPECT_EQ(count(chart(plan::one_f_one_b(1, 60)), "font-size: 11px"), 10u);
}

TEST(ScheduleChart, DrawsForwardAboveBackwardInAPair) {
  const auto svg = chart(plan::dual_pipe_v(1, 2));
  // The pair has 3 of 12, from 5 on. The later stage is the darker one.
  EXPECT_EQ(count(box(svg, "1F1"),
                  "<rect x=\"368.33\" y=\"56.0\" width=\"185.00\" height=\"10.0\" "
                  "fill=\"#4285f4\" fill-opacity=\"1.00\""),
            1u);
  EXPECT_EQ(count(box(svg, "0B0"),
                  "<rect x=\"368.33\" y=\"66.0\" width=\"185.00\" height=\"10.0\" "
                  "fill=\"#f29900\" fill-opacity=\"0.60\""),
            1u);
  EXPECT_EQ(count(svg, "font-size: 9px\">1</text>"), 1u);
  EXPECT_EQ(count(svg, "font-size: 9px\">0</text>"), 1u);
}

TEST(ScheduleChart, DrawsAPairAsOneBoxAndHalvesInTurnAsTwo) {
  EXPECT_EQ(count(chart(plan::dual_pipe_v(1, 2)), "height=\"10.0\""), 2u);
  EXPECT_EQ(count(chart(plan::dual_pipe_v(1, 2), {.pairs_in_turn = true}), "height=\"10.0\""), 0u);
  // A half that runs alone, since the other takes no time.
  EXPECT_EQ(
      count(chart(plan::dual_pipe_v(1, 2), {.stages = {{.forward = 0}}, .pairs_in_turn = true}),
            "height=\"10.0\""),
      0u);
}

TEST(ScheduleChart, DrawsGathersBelowTheRow) {
  const auto schedule = plan::add_reduce_grad(plan::add_unshard(plan::one_f_one_b(1, 1), 1));
  const auto svg = chart(schedule, {.stages = {{.unshard = 1, .reduce_grad = 1}}});
  EXPECT_EQ(count(svg, "height=\"4.0\" fill=\"#8250df\""), 1u);
  EXPECT_EQ(count(svg, "height=\"4.0\" fill=\"#9a6700\""), 1u);
  EXPECT_EQ(count(box(svg, "0UNSHARD"), "y=\"76.0\""), 1u);
  EXPECT_EQ(count(box(svg, "0REDUCE_GRAD"), "y=\"76.0\""), 1u);
}

TEST(ScheduleChart, DrawsWhatIsLive) {
  const auto svg = chart(plan::one_f_one_b(2, 2), {.stages = {{.activation_bytes = 3}}});
  EXPECT_EQ(count(svg, "peak 6"), 1u);
  EXPECT_EQ(count(svg, "peak 3"), 1u);
  EXPECT_EQ(count(svg, "<path class=\"line0\""), 2u);  // the curve and its name
  EXPECT_EQ(count(svg, "<path class=\"line1\""), 2u);
}

TEST(ScheduleChart, DrawsWhatIsLiveInStepsToTheEnd) {
  const auto svg = chart(plan::one_f_one_b(2, 2), {.stages = {{.activation_bytes = 3}}});
  // Rank 0 has 3 at first, 6 from 1 to 6 of 9, which is the axis's upper end, and nothing at 9.
  EXPECT_EQ(count(svg, "\"M60.0,225.0L142.2,225.0L142.2,160.0L"), 1u);
  EXPECT_EQ(count(svg, "L553.3,160.0L553.3,225.0L800.0,225.0L800.0,290.0"), 1u);
  // Rank 1 has 3 until 7 and then nothing, to the end.
  EXPECT_EQ(count(svg, "L635.6,225.0L635.6,290.0L800.0,290.0\""), 1u);
}

TEST(ScheduleChart, NamesTheCurvesWhoseColoursAreTheirOwn) {
  const auto svg = chart(plan::one_f_one_b(6, 6));
  EXPECT_EQ(count(svg, "rank 4</text>"), 2u);
  EXPECT_EQ(count(svg, "rank 5</text>"), 1u);
  EXPECT_EQ(count(svg, "<path class=\"line0\""), 3u);
}

TEST(ScheduleChart, HasAnAxisOfTimeAndOneOfBytes) {
  const auto svg = chart(plan::one_f_one_b(1, 1), {.stages = {{.activation_bytes = 4000}}});
  EXPECT_EQ(count(svg, "<text x=\"800.0\" y=\"276.0\" text-anchor=\"middle\">3.0</text>"), 1u);
  EXPECT_EQ(count(svg, "<text x=\"54.0\" y=\"134.0\" text-anchor=\"end\">4000</text>"), 1u);
  EXPECT_EQ(count(svg, "y=\"291.0\" text-anchor=\"middle\">time</text>"), 1u);
  EXPECT_EQ(count(svg, "viewBox=\"0 0 960 300\""), 2u);
}

TEST(ScheduleChart, OfActionsThatTakeNoTimeIsEmpty) {
  const auto svg = chart(plan::one_f_one_b(1, 1),
                         {.stages = {{.forward = 0, .backward_input = 0, .backward_weight = 0}}});
  EXPECT_EQ(count(svg, "<title>"), 0u);
  EXPECT_EQ(count(svg, "nan"), 0u);
  // The axes of times and bytes begin at 0.
  EXPECT_EQ(count(svg, "<text x=\"60.0\" y=\"276.0\" text-anchor=\"middle\">0</text>"), 1u);
  EXPECT_EQ(count(svg, ">-"), 0u);
}

}  // namespace
}  // namespace moegrad::tools::schedule_chart_test
