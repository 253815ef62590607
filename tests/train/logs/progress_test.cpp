// SPDX-License-Identifier: Apache-2.0
#include "train/logs/progress.h"

#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <sstream>
#include <string>

namespace moegrad::training::progress_test {
namespace {

using Seconds = Progress::Seconds;

TEST(ClockTime, HasHoursWhereThereAreAny) {
  EXPECT_EQ(clock_time(0.4), "0:00");
  EXPECT_EQ(clock_time(59.6), "1:00");
  EXPECT_EQ(clock_time(754), "12:34");
  EXPECT_EQ(clock_time(3600), "1:00:00");
  EXPECT_EQ(clock_time(100 * 3600 + 62), "100:01:02");
}

TEST(BarLine, LeavesOutTheLeastImportantPartsFirst) {
  const BarContent content = {.done = 25,
                              .steps = 50,
                              .seconds_left = 5,
                              .figures = {"loss 5.5451", "grad norm 1.500", "lr 4.00e-03"}};
  const std::string count = "25/50", time = count + " ETA 0:05", loss = time + " | loss 5.5451";
  const auto bar = [](std::size_t half) {
    return '[' + std::string(half, '=') + std::string(half, ' ') + "] ";
  };
  const std::string all = loss + " | grad norm 1.500 | lr 4.00e-03";
  EXPECT_EQ(bar_line(content, 200), bar(10) + all);
  EXPECT_EQ(bar_line(content, 79), "[=======        ] " + all);
  EXPECT_EQ(bar_line(content, 61), bar(6) + loss + " | grad norm 1.500");
  EXPECT_EQ(bar_line(content, 60), bar(6) + loss);
  EXPECT_EQ(bar_line(content, 39), bar(4) + loss);
  EXPECT_EQ(bar_line(content, 38), loss);
  EXPECT_EQ(bar_line(content, 28), loss);
  EXPECT_EQ(bar_line(content, 27), time);
  EXPECT_EQ(bar_line(content, 13), count);
  EXPECT_EQ(bar_line(content, 0), count);
}

TEST(BarLine, FitsAnyWidthThatHasRoomForTheCount) {
  for (const std::int64_t steps :
       {std::int64_t{1}, std::int64_t{100'000}, std::numeric_limits<std::int64_t>::max()}) {
    for (const std::int64_t done : {std::int64_t{1}, steps}) {
      const BarContent content = {
          .done = done,
          .steps = steps,
          .seconds_left = 1e9,
          .figures = {"loss nan", "grad norm inf", "lr 0.00e+00", "123456789 tokens/s",
                      "TGS 123456789", "load 1.00 2.00 3.00 4.00 5.00 6.00 7.00 8.00"}};
      const auto count = std::to_string(done) + '/' + std::to_string(steps);
      std::size_t before = 0;
      for (std::size_t columns = count.size(); columns < 300; ++columns) {
        const auto line = bar_line(content, columns);
        EXPECT_LE(line.size(), columns);
        EXPECT_NE(line.find(count), std::string::npos) << line;
        EXPECT_GE(line.size() + 20, before) << columns;
        before = line.size();
      }
    }
  }
}

TEST(Progress, PrintsALineEverySoManyStepsAndTheLast) {
  std::ostringstream out;
  Progress progress(out, std::nullopt, /*first_step=*/3, /*steps=*/8, /*log_every=*/2);
  for (int step = 3; step < 8; ++step) progress.step(step, {"loss 1", "lr 2"}, Seconds(1));
  progress.print("and so on");
  progress.finish();
  EXPECT_EQ(out.str(),
            "step     4 | loss 1 | lr 2\n"
            "step     6 | loss 1 | lr 2\n"
            "step     7 | loss 1 | lr 2\n"
            "and so on\n");
}

TEST(Progress, DrawsABarOverItselfAsWideAsTheTerminal) {
  std::ostringstream out;
  std::size_t columns = 100;
  Progress progress(
      out, [&] { return columns; }, /*first_step=*/2, /*steps=*/10, /*log_every=*/1);
  progress.step(2, {"loss 3", "lr 1"}, Seconds(2));
  progress.step(3, {"not drawn"}, Seconds(0.05));  // too soon
  columns = 40;
  progress.step(4, {"loss 2", "lr 1"}, Seconds(0.95));
  EXPECT_EQ(out.str(),
            "\r[=====              ] 3/10 ETA 0:14 | loss 3 | lr 1\x1b[K"
            "\r[====    ] 5/10 ETA 0:05 | loss 2\x1b[K");
  out.str("");
  columns = 30;
  progress.print("a line");
  EXPECT_EQ(out.str(), "\r\x1b[Ka line\n\r5/10 ETA 0:05 | loss 2\x1b[K");
  out.str("");
  progress.finish();
  progress.finish();
  EXPECT_EQ(out.str(), "\n");
}

TEST(Progress, LeavesItsBarWhenItEnds) {
  std::ostringstream out;
  {
    Progress progress(
        out, [] { return std::size_t{80}; }, 0, 10, 1);
    progress.step(0, {}, Seconds(1));
  }
  EXPECT_TRUE(out.str().ends_with("1/10 ETA 0:09\x1b[K\n")) << out.str();
}

}  // namespace
}  // namespace moegrad::training::progress_test
