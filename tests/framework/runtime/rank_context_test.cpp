// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/rank_context.h"

#include <gtest/gtest.h>

#include <thread>

namespace moegrad::rank_context_test {
namespace {

TEST(RankContext, AThreadWithoutOneGetsItsOwn) {
  auto* main = &RankContext::current();
  EXPECT_EQ(main, &RankContext::current());
  EXPECT_EQ(main->rank(), 0);
  EXPECT_EQ(main->world_size(), 1);
  EXPECT_EQ(main->pool().threads(), 1);
  EXPECT_EQ(main->group(), nullptr);
  RankContext* other = nullptr;
  std::jthread([&] { other = &RankContext::current(); }).join();
  EXPECT_NE(other, main);
}

TEST(RankContext, GuardsNest) {
  RankContext a({.rank = 1, .world_size = 3, .threads = 2}), b({.rank = 2, .world_size = 3});
  const RankContextGuard outer(a);
  {
    const RankContextGuard inner(b);
    EXPECT_EQ(RankContext::current().rank(), 2);
  }
  EXPECT_EQ(RankContext::current().rank(), 1);
  EXPECT_EQ(RankContext::current().world_size(), 3);
  EXPECT_EQ(RankContext::current().pool().threads(), 2);
  EXPECT_NE(a.arena(), b.arena());
}

}  // namespace
}  // namespace moegrad::rank_context_test
