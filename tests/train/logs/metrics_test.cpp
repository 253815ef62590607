// SPDX-License-Identifier: Apache-2.0
#include "train/logs/metrics.h"

#include <optional>
#include <vector>

#include "framework/distributed/launch.h"
#include "framework/runtime/rank_context.h"
#include "tests/testing.h"
#include "train/logs/peak_flops.h"

namespace moegrad::training::metrics_test {
namespace {

TEST(ExpertLoad, IsTheBusiestOverTheMean) {
  const StepResult result{.tokens_per_expert = {{2, 2, 2, 2}, {8, 0, 0, 0}, {0, 0, 0, 0}}};
  EXPECT_EQ(expert_load(result), (std::vector<double>{1.0, 4.0, 0.0}));
}

TEST(WorstLoad, IsTheLargestOfAllLayers) {
  const StepResult result{.tokens_per_expert = {{2, 2, 2, 2}, {6, 2, 0, 0}, {4, 4, 0, 0}}};
  EXPECT_EQ(worst_load(result), 3.0);
  EXPECT_EQ(worst_load({}), std::nullopt);
}

TEST(StepReport, MfuIsTheShareOfThePeakThatTheModelTook) {
  StepReport report{.seconds = 0.5, .result = {.model_flops = 3e9}};
  EXPECT_EQ(report.mfu(), std::nullopt);
  report.peak_flops = 24e9;
  EXPECT_EQ(report.mfu(), 0.25);
}

TEST(PeakFlops, IsTheSameOnEveryRankAndOfTheSizeOfACpu) {
  std::vector<double> peaks(2);
  launch(2, [&](RankContext& context) {
    peaks[static_cast<std::size_t>(context.rank())] = measure_peak_flops();
  });
  EXPECT_EQ(peaks[0], peaks[1]);
  EXPECT_GT(peaks[0], 1e8);
  EXPECT_LT(peaks[0], 1e13);
}

}  // namespace
}  // namespace moegrad::training::metrics_test
