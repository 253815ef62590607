// SPDX-License-Identifier: Apache-2.0
#include "tools/report/heat_map.h"

#include <gmock/gmock.h>

#include <cmath>

#include "tests/testing.h"
#include "tools/report/bitmap.h"

namespace moegrad::tools::heat_map_test {
namespace {

using test::message_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(LoadColour, IsWhiteAtTheMeanAndFullAtFourTimesIt) {
  EXPECT_EQ(load_colour(1), 6);
  EXPECT_EQ(colour_code(6), "#f7f7f7");
  EXPECT_EQ(load_colour(4), 12);
  EXPECT_EQ(load_colour(100), 12);
  EXPECT_EQ(colour_code(12), "#b2182b");
  EXPECT_EQ(load_colour(0.25), 0);
  EXPECT_EQ(load_colour(1e-9), 0);
  EXPECT_EQ(colour_code(0), "#2166ac");
  // Half as much is as far from the mean as twice as much.
  EXPECT_EQ(load_colour(2) - load_colour(1), load_colour(1) - load_colour(0.5));
  EXPECT_EQ(load_colour(1.05), 6);
  EXPECT_EQ(load_colour(1.3), 7);
}

TEST(LoadColour, OfNoLoadIsDarkerThanAnyOther) {
  const auto light = [](int colour) {
    const auto number = std::stoi(colour_code(colour).substr(1), nullptr, 16);
    return 299 * (number >> 16) + 587 * (number >> 8 & 255) + 114 * (number & 255);
  };
  EXPECT_EQ(load_colour(0), kDeadColour);
  for (int colour = 0; colour < kLoadColours; ++colour) {
    EXPECT_LT(4 * light(kDeadColour), light(colour)) << colour;
  }
  EXPECT_THAT(heat_map_legend(), HasSubstr("fill=\"" + colour_code(kDeadColour) + "\""));
  EXPECT_THAT(heat_map_legend(), HasSubstr(">none</text>"));
}

TEST(ExpertLoads, CountExpertsWithoutATokenInTheLastSteps) {
  ExpertLoads loads({{0, 0, 0}, {0, 0, 0}});
  // In layer 0, expert 1 has its last token in step 149, expert 2 in step 150.
  for (int step = 0; step < 250; ++step) {
    loads.add(step, {{1, step < 150 ? 1.0 : 0.0, step < 151 ? 1.0 : 0.0}, {1, 0, 0}});
    if (step == 6) {
      EXPECT_EQ(loads.dead_steps(), 7);
      EXPECT_EQ(loads.dead(0), 0);
    }
  }
  EXPECT_EQ(loads.dead_steps(), 100);
  EXPECT_EQ(loads.dead(0), 1);
  EXPECT_EQ(loads.dead(1), 2);
  // Where steps are missing, the last ones are by number.
  loads.add(251, {{1, 0, 0}, {1, 0, 1}});
  EXPECT_EQ(loads.dead(0), 2);
  EXPECT_EQ(loads.dead(1), 1);
  ExpertLoads late({{0, 0}});
  late.add(1000, {{0, 3}});
  EXPECT_EQ(late.dead_steps(), 1);
  EXPECT_EQ(late.dead(0), 1);
}

TEST(ExpertLoads, AreTokensOverTheMeanOfALayer) {
  ExpertLoads loads({{0, 0, 0, 0}, {0, 0}});
  loads.add(0, {{10, 30, 0, 0}, {5, 5}});
  loads.add(2, {{1, 1, 1, 1}, {0, 0}});
  EXPECT_EQ(loads.bins(), 3);
  EXPECT_EQ(loads.layers(), 2);
  EXPECT_EQ(loads.experts(1), 2);
  EXPECT_THAT(loads.loads(0),
              ElementsAre(ElementsAre(1, 3, 0, 0), IsEmpty(), ElementsAre(1, 1, 1, 1)));
  // Without tokens there is no load.
  EXPECT_THAT(loads.loads(1), ElementsAre(ElementsAre(1, 1), IsEmpty(), IsEmpty()));
}

TEST(ExpertLoads, SumTheTokensOfTheStepsOfABin) {
  ExpertLoads loads({{0, 0}});
  for (int step = 0; step < 500; ++step) loads.add(step, {{step % 2 == 0 ? 3.0 : 0.0, 1}});
  EXPECT_EQ(loads.bins(), 250);
  EXPECT_EQ(loads.first_step(), 0);
  EXPECT_EQ(loads.end_step(), 500);
  for (const auto& bin : loads.loads(0)) EXPECT_THAT(bin, ElementsAre(1.2, 0.8));
}

TEST(ExpertLoads, OfManyExpertsHaveWiderBins) {
  const ExpertCounts counts(48, std::vector<double>(128, 1));
  ExpertLoads loads(counts);
  for (int step = 0; step < 1000; ++step) loads.add(step, counts);
  EXPECT_LE(loads.bins() * 48 * 128, 1'000'000);
  EXPECT_GE(loads.bins(), 64);
}

TEST(ExpertLoads, RefuseCountsOfAnotherShape) {
  ExpertLoads loads({{0, 0}, {0, 0}});
  EXPECT_EQ(message_of<ValueError>([&] {
              loads.add(0, {{1, 2}, {1, 2, 3}});
            }),
            "must be of 2 layers of 2 2 experts, got 2 layers of 2 3 experts");
}

TEST(Bitmap, IsReadableByItsHeader) {
  EXPECT_EQ(base64(""), "");
  EXPECT_EQ(base64("f"), "Zg==");
  EXPECT_EQ(base64("fo"), "Zm8=");
  EXPECT_EQ(base64("foobar"), "Zm9vYmFy");
  EXPECT_EQ(base64("\xFF\xEF\xBE"), "/+++");
  Palette palette = {};
  palette[1] = {.red = 1, .green = 2, .blue = 3};
  const auto uri = bitmap_uri({{0, 1, 2}, {15, 14, 13}}, palette);
  std::string expected =
      std::string("BM\x7E\0\0\0\0\0\0\0\x76\0\0\0\x28\0\0\0\3\0\0\0\2\0\0\0\1\0\4\0", 30) +
      std::string("\0\0\0\0\x08\0\0\0\0\0\0\0\0\0\0\0\x10\0\0\0\0\0\0\0", 24) +
      std::string("\0\0\0\0\3\2\1\0", 8) + std::string(14 * 4, '\0') +
      std::string("\x01\x20\0\0\xFE\xD0\0\0", 8);
  EXPECT_EQ(uri, "data:image/bmp;base64," + base64(expected));
}

TEST(HeatMap, HasAColumnPerBinAndARowPerExpertFromBelow) {
  const auto picture = [](const std::vector<std::vector<double>>& loads) {
    return load_image(loads, 2);
  };
  const auto same = picture({{1, 4}, {0, 1}});
  EXPECT_EQ(same, picture({{1.01, 5}, {0, 0.99}}));
  EXPECT_NE(same, picture({{4, 1}, {0, 1}}));
  EXPECT_NE(same, picture({{1, 4}, {}}));
  EXPECT_NE(picture({{1, 4}, {}}), picture({{1, 4}, {0, 0}}));
  EXPECT_NE(same, picture({{1, 4}, {0.01, 1}}));
  // The end of the palette, then the pixels: expert 0 at the mean and at nothing, then expert 1.
  const auto tail = base64(std::string("\0\x6D\0\0\0\xC6\0\0\0", 9));
  EXPECT_EQ(same.substr(same.size() - tail.size()), tail);
}

TEST(HeatMap, SaysLayerStepsAndLastLoads) {
  ExpertLoads loads({{0, 0}, {0, 0, 0}});
  for (int step = 10; step < 12; ++step) loads.add(step, {{1, 1}, {11.0 - step, 1, 5}});
  const auto svg = heat_map(loads, 1);
  EXPECT_THAT(svg, HasSubstr(">expert, mixture layer 1</text>"));
  EXPECT_THAT(svg, HasSubstr(">last: 0.00 to 2.50 of the mean, 0 dead</text>"));
  EXPECT_THAT(svg, HasSubstr("text-anchor=\"middle\">10</text>"));
  EXPECT_THAT(svg, HasSubstr("text-anchor=\"middle\">11</text>"));
  EXPECT_THAT(heat_map_legend(), HasSubstr("fill=\"#f7f7f7\""));
}

}  // namespace
}  // namespace moegrad::tools::heat_map_test
