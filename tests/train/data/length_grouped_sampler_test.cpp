// SPDX-License-Identifier: Apache-2.0
#include "train/data/length_grouped_sampler.h"

#include <algorithm>
#include <cmath>
#include <latch>
#include <map>
#include <numeric>
#include <set>
#include <thread>

#include "tests/testing.h"
#include "train/data/attention_balance.h"

namespace moegrad::training::length_grouped_sampler_test {
namespace {

using test::message_of;
using Packs = std::vector<std::int64_t>;

Packs heavy_tailed(std::int64_t n) {
  const Random random(5, "work");
  Packs work;
  for (std::int64_t i = 0; i < n; ++i) {
    work.push_back(std::llround(std::exp(8 + random.normal(static_cast<std::uint64_t>(i)))));
  }
  return work;
}

Packs sorted(Packs packs) {
  std::ranges::sort(packs);
  return packs;
}

TEST(LengthGroupedSampler, EveryEpochIsAPermutationOfAllPacks) {
  for (const std::int64_t n : {1, 2, 3, 5, 7, 8, 9, 31, 32, 33, 100, 257, 1000}) {
    Packs all(static_cast<std::size_t>(n));
    std::iota(all.begin(), all.end(), 0);
    for (const std::int64_t m : {1, 2, 3, 4, 8, 12, 16}) {
      const LengthGroupedSampler sampler(heavy_tailed(n), m, 1);
      for (std::int64_t epoch = 0; epoch < 5; ++epoch) {
        EXPECT_EQ(sorted(sampler.packs(epoch * n, n)), all) << n << ' ' << m << ' ' << epoch;
      }
    }
  }
}

TEST(LengthGroupedSampler, StepsFollowEachOtherWithoutAGap) {
  const LengthGroupedSampler sampler(heavy_tailed(13), 4, 1);
  Packs joined;
  for (std::int64_t step = 0; step < 39; ++step) {
    const auto packs = sampler.packs_of_step(step);
    EXPECT_EQ(std::ssize(packs), 4);
    joined.insert(joined.end(), packs.begin(), packs.end());
  }
  EXPECT_EQ(joined, sampler.packs(0, 39 * 4));
}

TEST(LengthGroupedSampler, IsAFunctionOfSeedAndStepWhateverWasAskedBefore) {
  const auto work = heavy_tailed(29);
  const LengthGroupedSampler all(work, 8, 1);
  std::vector<Packs> steps;
  for (std::int64_t step = 0; step < 20; ++step) steps.push_back(all.packs_of_step(step));
  for (std::int64_t step = 19; step >= 0; --step) {
    const LengthGroupedSampler resumed(work, 8, 1);
    EXPECT_EQ(resumed.packs_of_step(step), steps[static_cast<std::size_t>(step)]);
    EXPECT_EQ(all.packs_of_step(step), steps[static_cast<std::size_t>(step)]);
  }
}

TEST(LengthGroupedSampler, OtherSeedsPutOtherPacksTogether) {
  const auto work = heavy_tailed(64);
  std::set<Packs> first_steps;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    first_steps.insert(sorted(LengthGroupedSampler(work, 8, seed).packs_of_step(0)));
  }
  EXPECT_EQ(first_steps.size(), 20U);
}

TEST(LengthGroupedSampler, PutsEveryPackAtEveryPlaceEquallyOften) {
  // Packs that weigh the same, in one step an epoch.
  const LengthGroupedSampler sampler(Packs(8), 8, 1);
  std::map<std::pair<std::size_t, std::int64_t>, int> counts;
  for (std::int64_t epoch = 0; epoch < 4000; ++epoch) {
    const auto packs = sampler.packs_of_step(epoch);
    for (std::size_t at = 0; at < 8; ++at) ++counts[{at, packs[at]}];
  }
  EXPECT_EQ(counts.size(), 64U);
  for (const auto& [place_and_pack, count] : counts) EXPECT_NEAR(count, 500, 100);
}

TEST(LengthGroupedSampler, AnswersThreadsThatAreInDifferentEpochs) {
  const LengthGroupedSampler sampler(heavy_tailed(64), 8, 1);
  std::latch start(3);
  const auto ask = [&](std::int64_t first) {
    const auto expected = sampler.packs(first, 64);
    return [&, first, expected] {
      start.arrive_and_wait();
      for (int i = 0; i < 5000; ++i) ASSERT_EQ(sampler.packs(first, 64), expected);
    };
  };
  const std::jthread one(ask(0)), other(ask(64)), third(ask(100));
}

TEST(LengthGroupedSampler, ShufflesEachEpochAnew) {
  const LengthGroupedSampler sampler(heavy_tailed(64), 4, 1);
  EXPECT_NE(sampler.packs(0, 64), sampler.packs(64, 64));
  // Not even the same packs share their steps.
  EXPECT_NE(sorted(sampler.packs_of_step(0)), sorted(sampler.packs_of_step(16)));
}

TEST(LengthGroupedSampler, DoesNotGoThroughAnEpochFromHeavyToLight) {
  const auto work = heavy_tailed(4000);
  const LengthGroupedSampler sampler(work, 4, 1);
  std::int64_t falls = 0;
  for (std::int64_t step = 1; step < 1000; ++step) {
    const auto of = [&](std::int64_t s) {
      return work[static_cast<std::size_t>(sampler.packs_of_step(s)[0])];
    };
    if (of(step) < of(step - 1)) ++falls;
  }
  EXPECT_GT(falls, 400);
  EXPECT_LT(falls, 600);
}

TEST(LengthGroupedSampler, SpreadsAStepOverHalvesAndQuartersOfAlikeWeight) {
  // One step an epoch: packs of work 8, 7, ..., 1 in the order that the halves ask for.
  Packs work = {3, 8, 1, 6, 5, 2, 7, 4};
  const LengthGroupedSampler sampler(work, 8, 1);
  Packs of_step;
  for (const auto pack : sampler.packs_of_step(0)) {
    of_step.push_back(work[static_cast<std::size_t>(pack)]);
  }
  EXPECT_EQ(of_step, (Packs{8, 1, 5, 4, 7, 2, 6, 3}));
}

TEST(LengthGroupedSampler, BalancesTheRanks) {
  for (const std::int64_t n : {512, 515}) {
    const auto work = heavy_tailed(n);
    const LengthGroupedSampler grouped(work, 16, 1), shuffled(Packs(work.size()), 16, 1);
    for (const int ranks : {2, 4, 8, 16}) {
      const auto before = attention_balance(shuffled, work, ranks, 100);
      const auto after = attention_balance(grouped, work, ranks, 100);
      EXPECT_LT(4 * after.waiting, before.waiting) << n << ' ' << ranks;
      EXPECT_LT(after.mean_ratio, before.mean_ratio);
    }
  }
}

TEST(LengthGroupedSampler, NeedsPacksAndMicroBatches) {
  EXPECT_EQ(message_of<ValueError>([] { LengthGroupedSampler({}, 1, 1); }),
            "sampler: needs at least 1 pack, got 0");
  EXPECT_EQ(message_of<ValueError>([] { LengthGroupedSampler({1}, 0, 1); }),
            "sampler: needs at least 1 micro-batch per step, got 0");
}

TEST(AttentionBalance, ComparesTheBusiestRankWithTheMean) {
  // One pack per rank and step: 6 and 2, in whatever order.
  const Packs work = {6, 2};
  const auto balance = attention_balance(LengthGroupedSampler(work, 2, 1), work, 2, 3);
  EXPECT_EQ(balance.mean_ratio, 1.5);
  EXPECT_EQ(balance.worst_ratio, 1.5);
  EXPECT_EQ(balance.waiting, 0.5);
}

}  // namespace
}  // namespace moegrad::training::length_grouped_sampler_test
