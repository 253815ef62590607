// SPDX-License-Identifier: Apache-2.0
#include "train/logs/exchange.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "framework/distributed/launch.h"
#include "parallel/expert/all_to_all_dispatcher.h"
#include "tests/testing.h"

namespace moegrad::training::exchange_test {
namespace {

TEST(RankLoad, IsTheBusiestOverTheMean) {
  const StepResult result{.tokens_per_expert = {{1, 3, 0, 0}, {1, 1, 1, 1}, {0, 0, 0, 0}}};
  EXPECT_EQ(rank_load(result, 2), (std::vector<double>{2.0, 1.0, 0.0}));
  EXPECT_EQ(rank_load(result, 4), (std::vector<double>{3.0, 1.0, 0.0}));
  EXPECT_EQ(rank_load(result, 1), (std::vector<double>{1.0, 1.0, 0.0}));
}

// Rank 0 has three tokens, of which two go to rank 1 and one to rank 2. The others have none.
TEST(ExchangeMeter, CountsWhatGoesToOtherRanksAndComesFromThem) {
  launch(3, [](RankContext& rank) {
    rank.counters().exchange_wait += 3'600'000'000'000;  // before: an hour
    ExchangeMeter meter(rank.counters());
    const std::vector<std::int64_t> experts =
        rank.rank() == 0 ? std::vector<std::int64_t>{1, 2, 1} : std::vector<std::int64_t>();
    const auto tokens = std::ssize(experts);
    parallel::AllToAllDispatcher dispatcher(rank.group(), 3);
    const Tensor x = test::randn({tokens, 5}, 1, Dtype::kFloat32, true);
    const auto dispatched = dispatcher(x, {.logits = {},
                                           .weights = test::randn({tokens, 1}, 2, Dtype::kFloat32),
                                           .indices = Tensor::from(experts, {tokens, 1})});
    const Tensor y = dispatcher.combine(dispatched.rows, dispatched);
    clone(y.detach());  // waits
    const auto there = meter.read(*rank.group());
    EXPECT_EQ(there.rows_sent, 3);                 // by rank 0
    EXPECT_EQ(there.rows_received, 2);             // by rank 1
    EXPECT_EQ(there.bytes_sent, 3 * (5 + 1) * 4);  // rows of five floats, and their weights
    EXPECT_EQ(there.bytes_received, 3 * 5 * 4);    // their results, by rank 0
    EXPECT_GT(there.wait_seconds, 0);
    EXPECT_LT(there.wait_seconds, 1800);
    meter.begin();
    y.backward(test::randn(y.shape(), 3, Dtype::kFloat32));
    const auto back = meter.read(*rank.group());
    EXPECT_EQ(back.rows_sent, 0);
    EXPECT_EQ(back.bytes_sent, 3 * 5 * 4);  // the weights need no gradient
    EXPECT_EQ(back.bytes_received, 3 * 5 * 4);
    meter.begin();
    EXPECT_EQ(meter.read(*rank.group()).bytes_sent, 0);
  });
}

}  // namespace
}  // namespace moegrad::training::exchange_test
