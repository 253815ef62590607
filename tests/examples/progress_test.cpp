// SPDX-License-Identifier: Apache-2.0
#include "examples/progress.h"

#include <gtest/gtest.h>

#include <sstream>

namespace moegrad::examples {
namespace {

using Seconds = Progress::Seconds;

TEST(ClockTime, HasHoursWhereThereAreAny) {
  EXPECT_EQ(clock_time(0.4), "0:00");
  EXPECT_EQ(clock_time(59.6), "1:00");
  EXPECT_EQ(clock_time(754), "12:34");
  EXPECT_EQ(clock_time(3600), "1:00:00");
  EXPECT_EQ(clock_time(100 * 3600 + 62), "100:01:02");
}

TEST(Progress, PrintsALineEverySoManyStepsAndTheLast) {
  std::ostringstream out;
  Progress progress(out, /*terminal=*/false, /*first_step=*/3, /*steps=*/8, /*log_every=*/2);
  for (int step = 3; step < 8; ++step) progress.step(step, std::to_string(step), Seconds(1));
  progress.finish();
  EXPECT_EQ(out.str(), "4\n6\n7\n");
}

TEST(Progress, DrawsABarOverItself) {
  std::ostringstream out;
  Progress progress(out, /*terminal=*/true, /*first_step=*/2, /*steps=*/10, /*log_every=*/1);
  progress.step(2, "long line", Seconds(2));
  progress.step(3, "not drawn", Seconds(0.05));  // too soon
  progress.step(4, "short", Seconds(0.95));
  EXPECT_EQ(out.str(),
            "\r[======              ] 3/10 ETA 0:14 | long line"
            "\r[==========          ] 5/10 ETA 0:05 | short    ");
  progress.finish();
  EXPECT_TRUE(out.str().ends_with("short    \n"));
  progress.finish();
  EXPECT_TRUE(out.str().ends_with("short    \n"));
}

}  // namespace
}  // namespace moegrad::examples
