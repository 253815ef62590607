// SPDX-License-Identifier: Apache-2.0
// What exchanges count of the bytes that a rank sends and receives, and of the time that it waits.
#include <gtest/gtest.h>

#include <vector>

#include "framework/distributed/launch.h"
#include "framework/tensor/fill.h"
#include "ops/collectives.h"
#include "ops/dispatch_rows.h"
#include "ops/reduce.h"
#include "tests/ops/dispatch_plans.h"

namespace moegrad::exchange_counters_test {
namespace {

using namespace dispatch_plans;

TEST(ExchangeCounters, CountsWhatGoesToOtherRanks) {
  launch(2, [](RankContext& context) {
    const auto planned = plan_for(context.rank(), 2);
    const auto other = static_cast<std::size_t>(1 - context.rank());
    const auto out = planned.plan.sent.sums_of_parts(2)[other];
    const auto in = planned.plan.received.sums_of_parts(2)[other];
    EXPECT_GT(out + in, 0);
    const auto& counters = context.counters();
    const Tensor x = tokens(context.rank(), 3, Dtype::kFloat64);
    const Tensor rows = ops::dispatch_rows(context.group(), x, planned.plan);
    EXPECT_EQ(counters.exchanged_bytes_sent, out * 3 * 8);
    EXPECT_EQ(counters.exchanged_bytes_received, in * 3 * 8);
    ops::sum(ops::combine_rows(context.group(), rows, planned.plan)).backward();
    EXPECT_EQ(counters.exchanged_bytes_sent, 2 * (out + in) * 3 * 8);
    EXPECT_EQ(counters.exchanged_bytes_received, 2 * (out + in) * 3 * 8);
  });
}

// In a group a rank has another number than in the world.
TEST(ExchangeCounters, CountsNoBytesToItselfInASubgroup) {
  launch(3, [](RankContext& context) {
    if (context.rank() == 0) return;
    const int ranks[] = {1, 2};
    const auto group = context.group()->subgroup(ranks, "pair");
    const auto planned = plan_for(group->rank(), 2);
    const auto other = static_cast<std::size_t>(1 - group->rank());
    const Tensor x = tokens(group->rank(), 3, Dtype::kFloat64);
    clone(ops::dispatch_rows(group, x, planned.plan).detach());
    EXPECT_EQ(context.counters().exchanged_bytes_sent,
              planned.plan.sent.sums_of_parts(2)[other] * 3 * 8);
    EXPECT_EQ(context.counters().exchanged_bytes_received,
              planned.plan.received.sums_of_parts(2)[other] * 3 * 8);
  });
}

TEST(ExchangeCounters, CountsTheTimeThatItIsWaitedFor) {
  launch(2, [](RankContext& context) {
    const auto planned = plan_for(context.rank(), 2);
    const Tensor sent = ops::dispatch_rows(
        context.group(), tokens(context.rank(), 3, Dtype::kFloat64), planned.plan);
    EXPECT_EQ(context.counters().exchange_wait, 0);
    clone(sent.detach());
    EXPECT_GT(context.counters().exchange_wait, 0);
  });
}

// Rank 0 keeps one row and sends two, rank 1 keeps three and sends one.
TEST(ExchangeCounters, AllToAllCountsWhatGoesToOtherRanks) {
  launch(2, [](RankContext& context) {
    const bool first = context.rank() == 0;
    using Rows = std::vector<std::int64_t>;
    const Rows sent = first ? Rows{1, 2} : Rows{1, 3}, received = first ? Rows{1, 1} : Rows{2, 3};
    const Tensor x = test::randn({first ? 3 : 4, 5}, 1, Dtype::kFloat32, true);
    const auto& counters = context.counters();
    const Tensor y = ops::all_to_all(context.group(), x, sent, received);
    EXPECT_EQ(counters.exchanged_bytes_sent, (first ? 2 : 1) * 5 * 4);
    EXPECT_EQ(counters.exchanged_bytes_received, (first ? 1 : 2) * 5 * 4);
    EXPECT_EQ(counters.exchange_wait, 0);
    clone(y.detach());
    EXPECT_GT(counters.exchange_wait, 0);
    ops::sum(y).backward();
    EXPECT_EQ(counters.exchanged_bytes_sent, 3 * 5 * 4);
    EXPECT_EQ(counters.exchanged_bytes_received, 3 * 5 * 4);
  });
}

}  // namespace
}  // namespace moegrad::exchange_counters_test
