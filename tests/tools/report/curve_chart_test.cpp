// SPDX-License-Identifier: Apache-2.0
#include "tools/report/curve_chart.h"

#include <gmock/gmock.h>

#include <cmath>
#include <regex>

namespace moegrad::tools::curve_chart_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Curve curve_of(const std::vector<double>& values) {
  Curve curve;
  for (std::size_t i = 0; i < values.size(); ++i) {
    curve.add(static_cast<std::int64_t>(i), values[i]);
  }
  return curve;
}

std::string chart(const Curve& curve, const AxisRange& steps) {
  return curve_chart({{"it", &curve}}, steps, {.width = 172, .height = 166});  // plot of 100 x 100
}

/// The data of the path of that class; empty without one.
std::string path(const std::string& svg, const std::string& name) {
  std::smatch match;
  const bool found =
      std::regex_search(svg, match, std::regex("class=\"" + name + "\" d=\"([^\"]*)\""));
  return found ? match[1].str() : "";
}

TEST(CurveChart, DrawsValuesWhereTheyBelong) {
  const auto svg = chart(curve_of({0, 10, 5}), {0, 2});
  // 0 and 10 are a twentieth of their distance from the lower and upper side.
  EXPECT_EQ(path(svg, "line0"), "M52.0,125.5L102.0,34.5L152.0,80.0");
  EXPECT_EQ(path(svg, "band0"), "");
  EXPECT_THAT(svg, HasSubstr("<text x=\"46.0\" y=\"129.5\" text-anchor=\"end\">0</text>"));
  EXPECT_THAT(svg, HasSubstr("<text x=\"152.0\" y=\"146.0\" text-anchor=\"middle\">2</text>"));
}

TEST(CurveChart, LeavesAGapWhereAValueIsNoNumber) {
  const auto svg = chart(curve_of({0, 10, NAN, 5, INFINITY, 0, 0}), {0, 10});
  EXPECT_EQ(path(svg, "line0"), "M52.0,125.5L62.0,34.5M82.0,80.0h0M102.0,125.5L112.0,125.5");
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

TEST(CurveChart, ShowsTheRangeOfBinsOfManySteps) {
  Curve curve;
  for (int step = 0; step < 2 * Curve::kMostBins; ++step) curve.add(step, step % 2 == 0 ? 0 : 10);
  const auto svg = chart(curve, {0, 2.0 * Curve::kMostBins});
  EXPECT_TRUE(path(svg, "line0").starts_with("M52.1,80.0L52.3,80.0L")) << svg;
  EXPECT_TRUE(path(svg, "band0").starts_with("M52.1,34.5L52.3,34.5L"));
  EXPECT_TRUE(path(svg, "band0").ends_with("L52.1,125.5z"));
  EXPECT_THAT(svg, Not(HasSubstr("<circle")));
}

TEST(CurveChart, SaysWhenThereIsNothingToDraw) {
  EXPECT_THAT(chart(Curve(), {0, 1}), HasSubstr(">no values</text>"));
  EXPECT_THAT(chart(curve_of({NAN}), {0, 1}), HasSubstr(">no values</text>"));
  EXPECT_THAT(chart(curve_of({1}), {0, 1}), Not(HasSubstr("no values")));
}

TEST(CurveChart, NamesTheLinesOnlyWhereThereAreSeveral) {
  const auto a = curve_of({1, 2}), b = curve_of({3, 4});
  EXPECT_THAT(chart(a, {0, 1}), Not(HasSubstr("it</text>")));
  const auto both = curve_chart({{"a & b", &a}, {"other", &b}}, {0, 1}, {});
  EXPECT_THAT(both, HasSubstr(">a &amp; b</text>"));
  EXPECT_THAT(both, HasSubstr(">other</text>"));
  EXPECT_NE(path(both, "line1"), "");
}

TEST(CurveChart, NamesLinesInRowsAboveEachOtherWhereOneHasNoRoom) {
  const auto curve = curve_of({1, 2});
  const auto legend_of = [&](const std::vector<std::string>& names) {
    std::vector<ChartLine> lines;
    for (const auto& name : names) lines.push_back({name, &curve});
    return curve_chart(lines, {0, 1}, {.width = 172, .height = 166, .unit = "u"});
  };
  const auto text = [](const std::string& x, const std::string& y, const std::string& name) {
    return "<text x=\"" + x + "\" y=\"" + y + "\" text-anchor=\"start\">" + name + "</text>";
  };
  // The plot ends at 152, a character is 6.6 wide.
  const auto one = legend_of({"ab", "cd"});
  EXPECT_THAT(one, HasSubstr(text("85.6", "18.0", "ab")));
  EXPECT_THAT(one, HasSubstr(text("138.8", "18.0", "cd")));
  const auto two = legend_of({"abcdef", "ghijkl"});
  EXPECT_THAT(two, HasSubstr(text("112.4", "18.0", "abcdef")));
  EXPECT_THAT(two, HasSubstr(text("112.4", "34.0", "ghijkl")));
  EXPECT_THAT(two, HasSubstr(text("0.0", "34.0", "u")));
}

TEST(CurveChart, GivesEachOfFiveLinesAColour) {
  const auto curve = curve_of({1, 2});
  const auto svg = curve_chart(std::vector<ChartLine>(6, {"it", &curve}), {0, 1}, {});
  EXPECT_NE(path(svg, "line4"), "");
  EXPECT_EQ(path(svg, "line5"), "");
}

TEST(CurveChart, DrawsAReferenceAcrossAndNamesIt) {
  const auto with = [](const std::vector<double>& values, double reference) {
    const auto curve = curve_of(values);
    return curve_chart(
        {{"it", &curve}}, {0, 2},
        {.width = 172, .height = 166, .reference = ReferenceLine{reference, "a < b"}});
  };
  const auto within = with({0, 10, 5}, 5);
  EXPECT_EQ(path(within, "line0"), "M52.0,125.5L102.0,34.5L152.0,80.0");
  EXPECT_THAT(within, HasSubstr("<path class=\"reference\" d=\"M52.0,80.0H152.0\"/>"));
  EXPECT_THAT(within, HasSubstr(">a &lt; b</text>"));
  // The axis reaches as far as it, unless the curve would be flat then.
  EXPECT_THAT(with({0, 10, 5}, 30), HasSubstr("d=\"M52.0,34.5H152.0\""));
  for (const auto& svg : {with({0, 10, 5}, 31), with({0, 10, 5}, NAN), with({0, 10}, INFINITY),
                          with({NAN}, 0.5), with({}, 0.5)}) {
    EXPECT_THAT(svg, Not(HasSubstr("reference")));
    EXPECT_THAT(svg, Not(HasSubstr("a &lt; b")));
  }
}

}  // namespace
}  // namespace moegrad::tools::curve_chart_test
