// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/parallel_for.h"

#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "framework/runtime/random.h"
#include "tests/testing.h"

namespace moegrad::parallel_for_test {
namespace {

using Pieces = std::map<std::int64_t, std::int64_t>;

Pieces pieces(int threads, std::int64_t n, std::int64_t grain) {
  RankContext context({.threads = threads});
  const RankContextGuard guard(context);
  std::mutex mutex;
  Pieces cuts;
  parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end) {
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(cuts.emplace(begin, end).second);
  });
  return cuts;
}

TEST(ParallelFor, CutsDependOnTheProblemAlone) {
  for (const int threads : {1, 2, 3}) {
    EXPECT_EQ(pieces(threads, 10, 4), (Pieces{{0, 4}, {4, 8}, {8, 10}}));
    EXPECT_EQ(pieces(threads, 8, 4), (Pieces{{0, 4}, {4, 8}}));
    EXPECT_EQ(pieces(threads, 3, 4), (Pieces{{0, 3}}));
    EXPECT_EQ(pieces(threads, 0, 4), Pieces{});
  }
}

TEST(ParallelFor, GivesTheSameBitsWithAnyNumberOfThreads) {
  const Random random(1, "parallel_for");
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 2, 4}) {
    RankContext context({.threads = threads});
    const RankContextGuard guard(context);
    std::vector<float> sums(37, 0);
    parallel_for(37, 5, [&](std::int64_t begin, std::int64_t end) {
      for (auto i = begin; i < end; ++i) {
        for (std::uint64_t j = 0; j < 100; ++j) {
          sums[static_cast<std::size_t>(i)] +=
              static_cast<float>(random.normal(static_cast<std::uint64_t>(i) * 100 + j));
        }
      }
    });
    results.push_back(sums);
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST(ParallelFor, NeedsAGrain) {
  EXPECT_EQ(
      test::message_of<ValueError>([] { parallel_for(10, 0, [](std::int64_t, std::int64_t) {}); }),
      "parallel_for: grain must be at least 1, got 0");
}

TEST(ParallelFor, FollowsANewNumberOfThreads) {
  RankContext context;
  const RankContextGuard guard(context);
  for (const int threads : {3, 1, 2}) {
    context.set_threads(threads);
    EXPECT_EQ(context.pool().threads(), threads);
    std::vector<int> hits(100, 0);
    parallel_for(100, 7, [&](std::int64_t begin, std::int64_t end) {
      for (auto i = begin; i < end; ++i) ++hits[static_cast<std::size_t>(i)];
    });
    EXPECT_EQ(hits, std::vector<int>(100, 1));
  }
}

}  // namespace
}  // namespace moegrad::parallel_for_test
