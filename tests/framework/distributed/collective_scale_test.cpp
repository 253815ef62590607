// SPDX-License-Identifier: Apache-2.0
// 128 ranks on one machine: every collective that fully_shard needs, at sizes that divide nothing.
#include <algorithm>
#include <numeric>

#include "framework/distributed/collectives.h"
#include "tests/framework/distributed/collective_testing.h"

namespace moegrad::collective_scale_test {
namespace {

using namespace test;

constexpr int kRanks = 128;
constexpr std::size_t kSizes[] = {1, 3, 5, 7, 13, 31, 63, 127};
constexpr std::size_t kLargest = 127;

template <class T>
class Scale : public ::testing::Test {
 protected:
  // The inputs of all ranks and what they make, computed once: a shorter vector of numbers() begins
  // like a longer one.
  static std::vector<T> gathered(std::size_t count, int first = 0, int ranks = kRanks) {
    std::vector<T> all;
    for (int rank = first; rank < first + ranks; ++rank) {
      const auto values = numbers<T>(rank, count);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }
};
using ElementTypes = ::testing::Types<float, double, BFloat16>;
TYPED_TEST_SUITE(Scale, ElementTypes);

// One call of each size, waited for at once or all at the end.
template <class Issue>
void issue_all(bool async, const Issue& issue) {
  std::vector<WorkPtr> works;
  for (std::size_t i = 0; i < std::size(kSizes); ++i) {
    works.push_back(issue(i));
    if (!async) works.back()->wait();
  }
  for (const auto& work : works) work->wait();
}

TYPED_TEST(Scale, AllGather) {
  std::vector<std::vector<TypeParam>> expected;
  for (const auto size : kSizes) expected.push_back(this->gathered(size));
  launch(kRanks, [&](RankContext& context) {
    const auto own = numbers<TypeParam>(context.rank(), kLargest);
    for (const bool async : {false, true}) {
      std::vector<std::vector<TypeParam>> outputs(std::size(kSizes));
      issue_all(async, [&](std::size_t i) {
        outputs[i].resize(kRanks * kSizes[i]);
        return context.group()->all_gather(
            std::as_bytes(std::span(own).first(kSizes[i])), dtype_of<TypeParam>,
            [out = std::as_writable_bytes(std::span(outputs[i])).data()](PeerSpans peers) mutable {
              for (const auto& peer : peers) out = std::copy(peer.begin(), peer.end(), out);
            });
      });
      EXPECT_TRUE(outputs == expected) << "rank " << context.rank();
    }
  });
}

TYPED_TEST(Scale, ReduceScatter) {
  const auto sums = reduced<TypeParam>(kRanks, kRanks * kLargest, ReduceOp::kSum);
  launch(kRanks, [&](RankContext& context) {
    const auto own = numbers<TypeParam>(context.rank(), kRanks * kLargest);
    const auto rank = static_cast<std::size_t>(context.rank());
    for (const bool async : {false, true}) {
      std::vector<std::vector<TypeParam>> outputs(std::size(kSizes));
      issue_all(async, [&](std::size_t i) {
        outputs[i].resize(kSizes[i]);
        return context.group()->reduce_scatter(
            {std::as_bytes(std::span(own).first(kRanks * kSizes[i]))},
            std::as_writable_bytes(std::span(outputs[i])), dtype_of<TypeParam>, ReduceOp::kSum);
      });
      for (std::size_t i = 0; i < std::size(kSizes); ++i) {
        const auto expected = std::span(sums).subspan(rank * kSizes[i], kSizes[i]);
        EXPECT_TRUE(std::ranges::equal(outputs[i], expected)) << "rank " << rank;
      }
    }
  });
}

TYPED_TEST(Scale, AllReduce) {
  const auto sums = reduced<TypeParam>(kRanks, kLargest, ReduceOp::kSum);
  launch(kRanks, [&](RankContext& context) {
    for (const bool async : {false, true}) {
      std::vector<std::vector<TypeParam>> values(std::size(kSizes));
      issue_all(async, [&](std::size_t i) {
        values[i] = numbers<TypeParam>(context.rank(), kSizes[i]);
        return context.group()->all_reduce(std::as_writable_bytes(std::span(values[i])),
                                           dtype_of<TypeParam>, ReduceOp::kSum);
      });
      for (const auto& sum : values) {
        EXPECT_TRUE(std::ranges::equal(sum, std::span(sums).first(sum.size())))
            << "rank " << context.rank();
      }
    }
  });
}

TEST(ScaleOfSubgroups, GatherAndReduceApartFromEachOther) {
  constexpr int kGroup = 8;
  launch(kRanks, [&](RankContext& context) {
    const int first = context.rank() / kGroup * kGroup;
    std::vector<int> ranks(kGroup);
    std::iota(ranks.begin(), ranks.end(), first);
    const auto group = context.group()->subgroup(ranks, "eight");
    for (const auto size : kSizes) {
      std::vector<std::int64_t> mine(size, context.rank()), all(size * kGroup);
      all_gather(*group, mine, std::span(all));
      for (std::size_t i = 0; i < all.size(); ++i) {
        ASSERT_EQ(all[i], first + static_cast<std::int64_t>(i / size));
      }
      all_reduce(*group, std::span(mine));
      EXPECT_EQ(mine.back(), kGroup * first + kGroup * (kGroup - 1) / 2);
    }
  });
}

}  // namespace
}  // namespace moegrad::collective_scale_test
