// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/arena.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <thread>
#include <tuple>
#include <vector>

#include "framework/runtime/error.h"
#include "framework/runtime/rank_context.h"
#include "tests/testing.h"

namespace moegrad::arena_test {
namespace {

using test::message_of;

TEST(Arena, CountsTheBytesAskedForPerTag) {
  Arena arena;
  auto* a = arena.allocate(1, MemoryTag::kParameters);
  auto* b = arena.allocate(1000, MemoryTag::kActivations);
  auto* c = arena.allocate(0, MemoryTag::kActivations);
  EXPECT_EQ(arena.live()[MemoryTag::kParameters], 1);
  EXPECT_EQ(arena.live()[MemoryTag::kActivations], 1000);
  EXPECT_EQ(arena.live().total(), 1001);
  arena.deallocate(a, 1, MemoryTag::kParameters);
  EXPECT_EQ(arena.live().total(), 1000);
  arena.deallocate(b, 1000, MemoryTag::kActivations);
  arena.deallocate(c, 0, MemoryTag::kActivations);
  EXPECT_EQ(arena.live().total(), 0);
}

TEST(Arena, BlocksAreAlignedAndLargeEnough) {
  Arena arena;
  for (std::int64_t bytes = 1; bytes < 40000; bytes += 1 + bytes / 3) {
    auto* block = arena.allocate(bytes, MemoryTag::kActivations);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % 64, 0U);
    std::memset(block, 1, static_cast<std::size_t>(bytes));
    arena.deallocate(block, bytes, MemoryTag::kActivations);
  }
}

// Asked of the pages themselves: a count of page faults would count a sanitizer's own as well.
TEST(Arena, TheFirstUseOfABlockIsNoPageFault) {
  Arena arena;
  constexpr std::int64_t kBytes = 1 << 20;
  auto* block = arena.allocate(kBytes, MemoryTag::kActivations);
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto first = (reinterpret_cast<std::uintptr_t>(block) + page - 1) / page * page;
  const auto pages = (reinterpret_cast<std::uintptr_t>(block) + kBytes - first) / page;
  std::vector<unsigned char> present(pages, 0);
  ASSERT_EQ(mincore(reinterpret_cast<void*>(first), pages * page, present.data()), 0);
  EXPECT_EQ(std::ranges::count_if(present, [](unsigned char bits) { return (bits & 1) == 0; }), 0);
  arena.deallocate(block, kBytes, MemoryTag::kActivations);
}

TEST(Arena, PeakIsASnapshotOfTheHighestMoment) {
  Arena arena;
  auto* a = arena.allocate(100, MemoryTag::kParameters);
  auto* b = arena.allocate(50, MemoryTag::kGradients);
  arena.deallocate(b, 50, MemoryTag::kGradients);
  auto* c = arena.allocate(40, MemoryTag::kActivations);
  EXPECT_EQ(arena.peak().total(), 150);
  EXPECT_EQ(arena.peak()[MemoryTag::kGradients], 50);
  EXPECT_EQ(arena.peak()[MemoryTag::kActivations], 0);
  EXPECT_EQ(arena.peak(MemoryTag::kActivations), 40);
  arena.reset_peak();
  EXPECT_EQ(arena.peak().total(), 140);
  EXPECT_EQ(arena.peak(MemoryTag::kGradients), 0);
  arena.deallocate(a, 100, MemoryTag::kParameters);
  arena.deallocate(c, 40, MemoryTag::kActivations);
  EXPECT_EQ(arena.peak().total(), 140);
}

TEST(Arena, ThrowsPastItsBudgetAndStaysUsable) {
  Arena arena;
  arena.set_budget(100);
  auto* a = arena.allocate(60, MemoryTag::kActivations);
  EXPECT_EQ(message_of<MemoryBudgetError>([&] { arena.allocate(101, MemoryTag::kGradients); }),
            "arena: budget of 100 bytes exceeded, 60 live (activations 60) and 101 more asked for "
            "gradients");
  auto* small = arena.allocate(5, MemoryTag::kParameters);
  EXPECT_EQ(message_of<MemoryBudgetError>([&] { arena.allocate(41, MemoryTag::kGradients); }),
            "arena: budget of 100 bytes exceeded, 65 live (activations 60, parameters 5) and 41 "
            "more asked for gradients");
  arena.deallocate(small, 5, MemoryTag::kParameters);
  EXPECT_EQ(arena.live().total(), 60);
  auto* b = arena.allocate(40, MemoryTag::kActivations);
  arena.set_budget(0);
  auto* c = arena.allocate(1000, MemoryTag::kActivations);
  arena.deallocate(a, 60, MemoryTag::kActivations);
  arena.deallocate(b, 40, MemoryTag::kActivations);
  arena.deallocate(c, 1000, MemoryTag::kActivations);
}

// The sanitizers' allocators end the program.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(Arena, SaysHowMuchTheSystemDidNotGive) {
  Arena arena;
  constexpr std::int64_t kHuge = (std::int64_t{1} << 60) + 1;
  arena.allocate(100, MemoryTag::kParameters);
  EXPECT_EQ(
      test::message_of<OutOfMemoryError>([&] { arena.allocate(kHuge, MemoryTag::kActivations); }),
      "arena: out of memory, 100 bytes live and 1152921504606846977 more asked for "
      "activations");
  EXPECT_EQ(arena.live().total(), 100);
}
#endif

TEST(Arena, ASteadyStateAsksTheSystemForNothing) {
  Arena arena;
  const auto step = [&](std::int64_t jitter) {
    std::vector<std::byte*> blocks;
    for (std::int64_t i = 1; i <= 32; ++i) {
      blocks.push_back(arena.allocate(i * 1024 + jitter, MemoryTag::kActivations));
    }
    for (std::int64_t i = 32; i >= 1; --i) {
      arena.deallocate(blocks[static_cast<std::size_t>(i - 1)], i * 1024 + jitter,
                       MemoryTag::kActivations);
    }
  };
  step(0);
  const auto first = arena.system_allocations();
  EXPECT_EQ(first, 32);
  for (int i = 0; i < 10; ++i) step(0);
  step(-3);  // sizes that differ a little share a free list
  EXPECT_EQ(arena.system_allocations(), first);
}

// Note [Blocks that are too large]: as the rows of an expert vary from step to step.
TEST(Arena, ALargeBlockServesRequestsIfItIsAtMostAQuarterLarger) {
  constexpr std::int64_t kMebi = 1 << 20;
  Arena arena;
  const auto ask = [&](std::int64_t bytes) {
    auto* const block = arena.allocate(bytes, MemoryTag::kActivations);
    EXPECT_EQ(arena.live().total(), bytes);
    arena.deallocate(block, bytes, MemoryTag::kActivations);
    EXPECT_EQ(arena.live().total(), 0);
    return arena.system_allocations();
  };
  EXPECT_EQ(ask(20 * kMebi), 1);
  for (const auto bytes : {16 * kMebi, 17 * kMebi + 5, 20 * kMebi, 19 * kMebi}) {
    EXPECT_EQ(ask(bytes), 1) << bytes;
  }
  EXPECT_EQ(ask(15 * kMebi), 2);  // a third more would be wasted
  EXPECT_EQ(ask(21 * kMebi), 3);
  // Each takes the smallest that will do, and the block keeps its size.
  auto* const small = arena.allocate(15 * kMebi, MemoryTag::kActivations);
  auto* const middle = arena.allocate(18 * kMebi, MemoryTag::kActivations);
  auto* const large = arena.allocate(21 * kMebi, MemoryTag::kActivations);
  EXPECT_EQ(arena.system_allocations(), 3);
  for (auto* const block : {small, middle, large}) EXPECT_NE(block, nullptr);
  EXPECT_EQ(arena.peak().total(), (15 + 18 + 21) * kMebi);
  arena.deallocate(small, 15 * kMebi, MemoryTag::kActivations);
  arena.deallocate(middle, 18 * kMebi, MemoryTag::kActivations);
  arena.deallocate(large, 21 * kMebi, MemoryTag::kActivations);
  // Small blocks fit.
  EXPECT_EQ(ask(1000), 4);
  EXPECT_EQ(ask(900), 5);
}

TEST(Arena, TensorsOfASteadyStepAreRecycled) {
  RankContext context;
  const RankContextGuard guard(context);
  const auto step = [] {
    const Tensor a = Tensor::zeros({10, 10}), b = Tensor::ones({5}, Dtype::kFloat64);
    const Tensor c = clone(a), d = to_dtype(b, Dtype::kFloat32);
  };
  step();
  const auto first = context.arena()->system_allocations();
  for (int i = 0; i < 5; ++i) step();
  EXPECT_EQ(context.arena()->system_allocations(), first);
  EXPECT_EQ(context.arena()->live().total(), 0);
}

TEST(Arena, RetagMovesBytesAndCountsAsAPeakOfTheNewTag) {
  Arena arena;
  auto* block = arena.allocate(10, MemoryTag::kActivations);
  arena.retag(10, MemoryTag::kActivations, MemoryTag::kGradients);
  EXPECT_EQ(arena.live()[MemoryTag::kActivations], 0);
  EXPECT_EQ(arena.live()[MemoryTag::kGradients], 10);
  EXPECT_EQ(arena.peak(MemoryTag::kGradients), 10);
  EXPECT_EQ(arena.peak().total(), 10);
  arena.deallocate(block, 10, MemoryTag::kGradients);
}

TEST(Arena, CountsExactlyFromSeveralThreads) {
  Arena arena;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&arena] {
        for (int i = 0; i < 500; ++i) {
          auto* block = arena.allocate(100, MemoryTag::kActivations);
          arena.deallocate(block, 100, MemoryTag::kActivations);
        }
      });
    }
  }
  EXPECT_EQ(arena.live().total(), 0);
  EXPECT_LE(arena.peak().total(), 400);
  EXPECT_LE(arena.system_allocations(), 4);
}

TEST(MemoryTag, GuardsNestAndBelongToTheirThread) {
  EXPECT_EQ(MemoryTagGuard::current(), MemoryTag::kActivations);
  const MemoryTagGuard outer(MemoryTag::kParameters);
  {
    const MemoryTagGuard inner(MemoryTag::kOptimizer);
    EXPECT_EQ(MemoryTagGuard::current(), MemoryTag::kOptimizer);
    std::jthread([] { EXPECT_EQ(MemoryTagGuard::current(), MemoryTag::kActivations); });
  }
  EXPECT_EQ(MemoryTagGuard::current(), MemoryTag::kParameters);
}

TEST(MemoryTag, HasNames) {
  EXPECT_EQ(to_string(MemoryTag::kParameters), "parameters");
  EXPECT_EQ(to_string(MemoryTag::kGradients), "gradients");
  EXPECT_EQ(to_string(MemoryTag::kOptimizer), "optimizer");
  EXPECT_EQ(to_string(MemoryTag::kActivations), "activations");
  EXPECT_EQ(to_string(MemoryTag::kCommunication), "communication");
}

#if defined(__SANITIZE_ADDRESS__)

// Note [Exact blocks]: what an arena that recycles rounded blocks would hide.

TEST(ArenaDeathTest, AnElementPastTheEndIsFound) {
  Tensor x = Tensor::empty({5}, Dtype::kFloat32);
  float* const past = x.mutable_data<float>().data() + 5;
  EXPECT_DEATH(*static_cast<volatile float*>(past) = 1.0F, "heap-buffer-overflow");
}

TEST(ArenaDeathTest, AUseAfterTheEndIsFound) {
  const float* freed = nullptr;
  {
    const Tensor x = Tensor::zeros({5}, Dtype::kFloat32);
    freed = x.data<float>().data();
  }
  EXPECT_DEATH({ [[maybe_unused]] const float read = *static_cast<const volatile float*>(freed); },
               "heap-use-after-free");
}

TEST(Arena, WhatWasNeverWrittenIsNaN) {
  for (int i = 0; i < 2; ++i) {  // a second block is no recycled first
    Tensor x = Tensor::empty({300}, Dtype::kFloat64);
    for (const double value : x.data<double>()) EXPECT_TRUE(std::isnan(value));
    std::ranges::fill(x.mutable_data<double>(), 1.0);
  }
}

#endif

TEST(Arena, HasNoRoomForMoreBytesThanAnySystem) {
  for (const std::int64_t size : {(std::int64_t{1} << 60) + 1, std::int64_t{1} << 60}) {
    EXPECT_THROW(Tensor::zeros({size}), OutOfMemoryError) << size;
  }
  EXPECT_THROW(Tensor::empty({std::numeric_limits<std::int64_t>::max()}, Dtype::kBool),
               OutOfMemoryError);
}

}  // namespace
}  // namespace moegrad::arena_test
