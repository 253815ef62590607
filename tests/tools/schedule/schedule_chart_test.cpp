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

TEST(ScheduleChart, DrawsAPairAsOneBoxAndHalvesInTurnAsTwo) {
  EXPECT_EQ(count(chart(plan::dual_pipe_v(1, 2)), "height=\"10.0\""), 2u);
  EXPECT_EQ(count(chart(plan::dual_pipe_v(1, 2), {.pairs_in_turn = true}), "height=\"10.0\""), 0u);
}

TEST(ScheduleChart, DrawsGathersBelowTheRow) {
  const auto schedule = plan::add_reduce_grad(plan::add_unshard(plan::one_f_one_b(1, 1), 1));
  const auto svg = chart(schedule, {.stages = {{.unshard = 1, .reduce_grad = 1}}});
  EXPECT_EQ(count(svg, "height=\"4.0\" fill=\"#8250df\""), 1u);
  EXPECT_EQ(count(svg, "height=\"4.0\" fill=\"#9a6700\""), 1u);
}

TEST(ScheduleChart, DrawsWhatIsLive) {
  const auto svg = chart(plan::one_f_one_b(2, 2), {.stages = {{.activation_bytes = 3}}});
  EXPECT_EQ(count(svg, "peak 6"), 1u);
  EXPECT_EQ(count(svg, "peak 3"), 1u);
  EXPECT_EQ(count(svg, "<path class=\"line0\""), 2u);  // the curve and its name
  EXPECT_EQ(count(svg, "<path class=\"line1\""), 2u);
}

TEST(ScheduleChart, OfActionsThatTakeNoTimeIsEmpty) {
  const auto svg = chart(plan::one_f_one_b(1, 1),
                         {.stages = {{.forward = 0, .backward_input = 0, .backward_weight = 0}}});
  EXPECT_EQ(count(svg, "<title>"), 0u);
  EXPECT_EQ(count(svg, "nan"), 0u);
}

}  // namespace
}  // namespace moegrad::tools::schedule_chart_test
