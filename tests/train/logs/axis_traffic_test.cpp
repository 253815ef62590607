// SPDX-License-Identifier: Apache-2.0
#include "train/logs/axis_traffic.h"

#include <gtest/gtest.h>

#include <chrono>
#include <span>
#include <thread>

#include "framework/distributed/collectives.h"
#include "framework/distributed/launch.h"
#include "framework/distributed/parallel_dims.h"

namespace moegrad::training::axis_traffic_test {
namespace {

using namespace std::chrono_literals;

void gather(ProcessGroup& group, std::size_t elements) {
  const std::vector<float> input(elements);
  std::vector<float> output(elements * static_cast<std::size_t>(group.size()));
  all_gather(group, input, std::span(output));
}

// Ranks 2 and 3 send more than the others.
TEST(AxisMeter, HasTheMostOfAnyRankForEachAxis) {
  launch(4, [](RankContext& context) {
    const auto meshes = make_meshes(context.group(), {.dp_shard = 2, .tp = 2, .ep = 2});
    AxisMeter meter(context.group(), meshes.axes_of_groups());
    gather(*meshes.dense.group("tp"), 1000);  // before the step
    meter.begin();
    gather(*meshes.dense.group("shard"), 3);
    gather(*meshes.dense.group("tp"), context.rank() < 2 ? 5 : 7);
    meter.end();
    gather(*context.group(), 1000);  // after it
    const auto axes = meter.read();
    ASSERT_EQ(axes.size(), 2U);  // the group of all ranks, which is no axis, has moved nothing
    EXPECT_EQ(axes[0].axis, "dp_shard");
    EXPECT_EQ(axes[0].bytes_sent, 3 * 4);
    EXPECT_EQ(axes[0].bytes_received, 3 * 4);
    EXPECT_EQ(axes[1].axis, "tp+ep");
    EXPECT_EQ(axes[1].bytes_sent, 7 * 4);
    EXPECT_EQ(axes[1].bytes_received, 7 * 4);
  });
}

// Rank 2 begins to wait at once, or a little later.
TEST(AxisMeter, ALateRankShowsAsWaitingOnItsAxisAlone) {
  launch(4, [](RankContext& context) {
    const auto meshes = make_meshes(context.group(), {.dp_shard = 2, .tp = 2});
    AxisMeter meter(context.group(), meshes.axes_of_groups());
    meter.begin();
    if (context.rank() == 3) std::this_thread::sleep_for(300ms);
    meshes.dense.group("tp")->barrier()->wait();
    meter.end();
    for (const auto& each : meter.read()) {
      if (each.axis == "tp") {
        EXPECT_GE(each.wait_seconds, 0.1);
      } else {
        EXPECT_EQ(each.wait_seconds, 0) << each.axis;
      }
    }
  });
}

TEST(AxisMeter, HasNothingOfOneRank) {
  launch(1, [](RankContext& context) {
    AxisMeter meter(context.group(), {});
    meter.begin();
    gather(*context.group(), 3);
    meter.end();
    EXPECT_TRUE(meter.read().empty());
  });
}

}  // namespace
}  // namespace moegrad::training::axis_traffic_test
