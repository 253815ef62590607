// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>

#include "framework/distributed/collectives.h"
#include "tests/framework/distributed/collective_testing.h"

namespace moegrad::collective_jitter_test {
namespace {

using namespace std::chrono_literals;
using namespace test;

TEST(Jitter, DrawsByRankStreamAndIndexAlone) {
  const Jitter jitter{.maximum = 1ms, .seed = 3};
  std::set<std::chrono::nanoseconds> seen;
  for (int rank = 0; rank < 4; ++rank) {
    for (const auto* stream : {"group world", "group world, queue gather"}) {
      for (int index = 0; index < 50; ++index) {
        const auto delay = jitter.delay(rank, stream, index);
        EXPECT_EQ(delay, jitter.delay(rank, stream, index));
        EXPECT_TRUE(0ns <= delay && delay < 1ms);
        seen.insert(delay);
      }
    }
  }
  EXPECT_GT(seen.size(), 390U);  // of 400, all different but for chance
  EXPECT_LT(*seen.begin(), 50us);
  EXPECT_GT(*seen.rbegin(), 950us);
  EXPECT_NE((Jitter{.maximum = 1ms, .seed = 4}.delay(0, "group world", 0)),
            jitter.delay(0, "group world", 0));
  EXPECT_EQ(Jitter().delay(0, "group world", 0), 0ns);
}

TEST(Jitter, ChangesNoResult) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    launch(4,
           [](RankContext& context) {
             auto& group = *context.group();
             const int pair[] = {context.rank() / 2 * 2, context.rank() / 2 * 2 + 1};
             const auto half = group.subgroup(pair, "half");
             std::vector<std::vector<float>> sums(10, numbers<float>(context.rank(), 65));
             std::vector<std::vector<float>> gathered(10, std::vector<float>(2 * 65));
             std::vector<WorkPtr> works;
             const auto own = numbers<float>(context.rank(), 65);
             for (std::size_t i = 0; i < sums.size(); ++i) {
               works.push_back(group.all_reduce(
                   std::as_writable_bytes(std::span(sums[i])), Dtype::kFloat32, ReduceOp::kSum,
                   {.queue = i % 2 == 0 ? CollectiveQueue::kGather : CollectiveQueue::kReduce}));
               works.push_back(half->all_gather(
                   std::as_bytes(std::span(own)), Dtype::kFloat32, [&, i](PeerSpans peers) {
                     auto* out = std::as_writable_bytes(std::span(gathered[i])).data();
                     for (const auto& peer : peers) {
                       out = std::copy(peer.begin(), peer.end(), out);
                     }
                   }));
               if (i % 3 == 0) group.barrier()->wait();
             }
             for (const auto& work : works) work->wait();
             auto expected = numbers<float>(pair[0], 65);
             const auto second = numbers<float>(pair[1], 65);
             expected.insert(expected.end(), second.begin(), second.end());
             for (const auto& sum : sums) EXPECT_EQ(sum, reduced<float>(4, 65, ReduceOp::kSum));
             for (const auto& all : gathered) EXPECT_EQ(all, expected);
           },
           {.jitter = {.maximum = 2ms, .seed = seed}});
  }
}

TEST(Jitter, DelaysJoiningAndThenTheFirstStep) {
  const Jitter jitter{.maximum = 40ms, .seed = 5};
  launch(2,
         [&](RankContext& context) {
           const auto drawn = [&](std::int64_t index) {
             return jitter.delay(context.rank(), "group world", index);
           };
           const auto start = std::chrono::steady_clock::now();
           context.group()->barrier()->wait();
           const auto after_barrier = std::chrono::steady_clock::now();
           EXPECT_GE(after_barrier - start, drawn(0));
           std::vector<float> values(2);
           all_reduce(*context.group(), std::span(values));
           EXPECT_GE(std::chrono::steady_clock::now() - after_barrier, drawn(2) + drawn(3));
         },
         {.jitter = jitter});
}

TEST(Jitter, BeyondTheDeadlineFailsNothing) {
  // A seed by which one rank joins much later than the other, yet soon after the start: a busy
  // machine has the rest of the second.
  Jitter jitter{.maximum = 1s};
  const auto is_apart = [&] {
    const auto [early, late] =
        std::minmax({jitter.delay(0, "group world", 0), jitter.delay(1, "group world", 0)});
    return late - early > 200ms && late < 300ms;
  };
  while (!is_apart()) ++jitter.seed;
  launch(2, [](RankContext& context) { context.group()->barrier()->wait(); },
         {.deadline = 100ms, .jitter = jitter});
}

TEST(Jitter, OfALoneRankIsNone) {
  launch(1,
         [](RankContext& context) {
           std::vector<float> values(2);
           all_reduce(*context.group(), std::span(values));
           context.group()->barrier()->wait();
         },
         {.jitter = {.maximum = 10h}});
}

}  // namespace
}  // namespace moegrad::collective_jitter_test
