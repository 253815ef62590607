// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/halving.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "tests/ops/matmul_reference.h"

namespace moegrad::kernels::halving_test {
namespace {

// A sum written down: leaves are terms, and each node says which terms it adds and in which order.
struct Node {
  std::int64_t begin = 0, end = 0;
  std::uint64_t shape = 0;  // equal for equal trees

  friend bool operator==(const Node&, const Node&) = default;
};

Node leaf(std::int64_t begin, std::int64_t terms) {
  return {begin, begin + terms,
          static_cast<std::uint64_t>(begin * 1000003 + terms) * 0x9e3779b97f4a7c15U};
}

Node operator+(const Node& left, const Node& right) {
  EXPECT_EQ(left.end, right.begin);
  return {left.begin, right.end, (left.shape * 31 + right.shape) * 0x9e3779b97f4a7c15U + 7};
}

Node by_definition(std::int64_t begin, std::int64_t terms) {
  return test::halved(begin, terms, 128, 16, leaf);
}

// A part that a kernel computes at once.
Node by_chains(std::int64_t begin, std::int64_t terms) {
  const auto chains = Chains::of(terms);
  std::vector<Node> waiting;
  for (int i = 0; i < chains.count; ++i) {
    auto sum = leaf(begin, chains.steps[i]);
    begin += chains.steps[i];
    for (int j = 0; j < chains.joins[i]; ++j) {
      sum = waiting.back() + sum;
      waiting.pop_back();
    }
    waiting.push_back(sum);
    EXPECT_LE(waiting.size(), 2U + static_cast<std::size_t>(i + 1 == chains.count));
  }
  EXPECT_EQ(waiting.size(), 1U);
  return waiting.front();
}

template <class Of>
Node by_levels(std::int64_t terms, std::int64_t longest, const Of& of) {
  const auto levels = most_levels(terms, longest, kHalvingUnit, false);
  std::vector<Node> sums(static_cast<std::size_t>(levels));
  int reached = 1;
  const auto at = [&](int level) -> Node& {
    reached = std::max(reached, level + 1);
    return sums.at(static_cast<std::size_t>(level));
  };
  for_each_part(
      0, terms, longest, kHalvingUnit, 0, false,
      [&](std::int64_t begin, std::int64_t size, int level, bool adds) {
        EXPECT_LE(size, longest);
        at(level) = adds ? at(level) + of(begin, size) : of(begin, size);
      },
      [&](int level) { at(level) = at(level) + at(level + 1); });
  EXPECT_EQ(reached, levels);
  return sums.front();
}

std::vector<std::int64_t> sizes() {
  std::vector<std::int64_t> all;
  for (std::int64_t n = 0; n <= 4000; ++n) all.push_back(n);
  for (std::int64_t n = 4001; n <= 20000; n += 13) all.push_back(n);
  for (const std::int64_t n : {65536, 65537, 151936, 262144, 299999, 300000}) all.push_back(n);
  return all;
}

TEST(Halving, PiecesOfAnySizeAreSubtreesOfTheDefinition) {
  for (const auto n : sizes()) {
    const auto expected = by_definition(0, n);
    for (const std::int64_t longest : {128, 192, 256, 384, 512}) {
      ASSERT_EQ(by_levels(n, longest, by_definition), expected) << n << " by " << longest;
      ASSERT_EQ(by_levels(n, longest, by_chains), expected) << n << " by chains of " << longest;
    }
  }
}

TEST(Halving, PartsSideBySideJoinToTheDefinition) {
  for (const auto n : sizes()) {
    const auto count = count_parts(n);
    std::vector<Node> parts;
    for (std::int64_t i = 0; i < count; ++i) {
      const auto part = part_at(n, i);
      parts.push_back(leaf(part.begin, part.terms));
    }
    const auto joined =
        join_parts(0, n, kChainTerms, kHalvingUnit, [&](std::int64_t to, std::int64_t from) {
          auto& sum = parts[static_cast<std::size_t>(to)];
          sum = sum + parts[static_cast<std::size_t>(from)];
        });
    ASSERT_EQ(joined, count);
    ASSERT_EQ(parts.front(), by_definition(0, n)) << n;
  }
}

TEST(Halving, PartsHave49To128Terms) {
  std::int64_t shortest = 128, longest = 0;
  for (std::int64_t n = 129; n <= 20000; ++n) {
    for_each_part(
        0, n, kChainTerms, kHalvingUnit, 0, false,
        [&](std::int64_t, std::int64_t terms, int, bool) {
          shortest = std::min(shortest, terms);
          longest = std::max(longest, terms);
        },
        [](int) {});
  }
  EXPECT_EQ(shortest, 49);
  EXPECT_EQ(longest, 128);
}

TEST(Halving, TheLeftHalfTakesTheOddUnit) {
  EXPECT_EQ(left_half(256), 128);
  EXPECT_EQ(left_half(272), 144);
  EXPECT_EQ(left_half(129), 80);  // nine units, the last of one term
  EXPECT_EQ(left_half(5, 1), 3);
  EXPECT_EQ(Chains::of(0).count, 1);
  EXPECT_EQ(Chains::of(512).count, 4);
}

// The rule by which Note [Sums by halving] says where ranks have subtrees.
TEST(Halving, SharesOfRanksAreSubtreesWhereTheNoteSaysSo) {
  for (std::int64_t n = 16; n <= 20000; n += 16) {
    for (const std::int64_t ranks : {2, 4, 8}) {
      if (n % ranks != 0) continue;
      const auto share = n / ranks;
      std::vector<Node> sums;
      for (std::int64_t r = 0; r < ranks; ++r) sums.push_back(by_definition(r * share, share));
      for (; sums.size() > 1; sums.resize(sums.size() / 2)) {
        for (std::size_t i = 0; i < sums.size() / 2; ++i) sums[i] = sums[2 * i] + sums[2 * i + 1];
      }
      const bool said = n % (16 * ranks) == 0 && 2 * n / ranks > 128;
      ASSERT_EQ(sums.front() == by_definition(0, n), said) << n << " over " << ranks;
    }
  }
}

}  // namespace
}  // namespace moegrad::kernels::halving_test
