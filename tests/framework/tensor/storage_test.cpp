// SPDX-License-Identifier: Apache-2.0
#include "framework/tensor/storage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <latch>
#include <memory>
#include <thread>
#include <vector>

#include "framework/runtime/rank_context.h"
#include "tests/testing.h"

namespace moegrad::storage_test {
namespace {

using test::message_of;

std::int64_t live() { return RankContext::current().arena()->live().total(); }

TEST(Storage, BytesComeBackWhileHandlesLive) {
  Tensor tensor = Tensor::from(std::vector<float>{1, 2, 3}, {3});
  const Tensor alias = tensor.detach();
  const Tensor view = Tensor::as_strided(tensor, {2}, {1}, 1);
  const auto before = live();
  auto& storage = tensor.storage();
  const auto version = storage.version();

  storage.release();
  EXPECT_TRUE(storage.released());
  EXPECT_EQ(live(), before - 12);
  EXPECT_EQ(storage.bytes(), 12);
  storage.release();
  EXPECT_EQ(live(), before - 12);

  storage.refill();
  EXPECT_EQ(live(), before);
  storage.refill();
  EXPECT_EQ(live(), before);
  const float values[] = {4, 5, 6};
  std::memcpy(storage.data(), values, sizeof values);
  EXPECT_EQ(storage.version(), version);  // see Note [Storage that is freed and refilled]
  EXPECT_EQ(alias.data<float>()[0], 4);
  EXPECT_EQ(view.data<float>()[1], 6);
}

TEST(Storage, ReadingReleasedBytesNamesTheParameter) {
  Tensor tensor = Tensor::zeros({2});
  tensor.storage().release();
  EXPECT_EQ(message_of<Error>([&] { tensor.data<float>(); }),
            "tensor: the bytes of '(unnamed)' have been released; unshard its module before "
            "reading it");
  tensor.storage().set_name("model.layers.0.mlp.experts.gate_up_proj");
  EXPECT_EQ(message_of<Error>([&] { tensor.strided_data<float>(); }),
            "tensor: the bytes of 'model.layers.0.mlp.experts.gate_up_proj' have been released; "
            "unshard its module before reading it");
  const auto version = tensor.storage().version();
  EXPECT_THROW(tensor.mutable_data<float>(), Error);
  EXPECT_EQ(tensor.storage().version(), version);
}

TEST(Storage, WritingCountsAVersionThatAllViewsShare) {
  Tensor tensor = Tensor::zeros({4});
  Tensor view = Tensor::as_strided(tensor, {2}, {1}, 2);
  const auto version = tensor.storage().version();
  (void)tensor.data<float>();
  EXPECT_EQ(view.storage().version(), version);
  (void)view.mutable_data<float>();
  EXPECT_EQ(tensor.storage().version(), version + 1);
}

TEST(Storage, RefillKeepsTheTagAndRetagMovesTheAccount) {
  auto& arena = *RankContext::current().arena();
  const auto before = arena.live();
  const MemoryTagGuard guard(MemoryTag::kParameters);
  Storage storage(100);
  EXPECT_EQ(arena.live()[MemoryTag::kParameters], before[MemoryTag::kParameters] + 100);
  storage.retag(MemoryTag::kCommunication);
  EXPECT_EQ(arena.live()[MemoryTag::kParameters], before[MemoryTag::kParameters]);
  EXPECT_EQ(arena.live()[MemoryTag::kCommunication], before[MemoryTag::kCommunication] + 100);
  storage.release();
  EXPECT_EQ(arena.live().total(), before.total());
  storage.retag(MemoryTag::kOptimizer);
  EXPECT_EQ(arena.live().total(), before.total());
  storage.refill();
  EXPECT_EQ(arena.live()[MemoryTag::kOptimizer], before[MemoryTag::kOptimizer] + 100);
}

TEST(Storage, MayOutliveItsRank) {
  Tensor tensor;
  {
    RankContext context;
    const RankContextGuard guard(context);
    tensor = Tensor::ones({3});
  }
  EXPECT_EQ(tensor.data<float>()[2], 1);
}

TEST(Storage, GoesBackToTheArenaItCameFrom) {
  RankContext first, second;
  Tensor tensor;
  {
    const RankContextGuard guard(first);
    tensor = Tensor::ones({3});
  }
  const RankContextGuard guard(second);
  EXPECT_EQ(first.arena()->live().total(), 12);
  tensor = Tensor();
  EXPECT_EQ(first.arena()->live().total(), 0);
  EXPECT_EQ(second.arena()->live().total(), 0);
}

/// Reads until somebody awaits its end.
class EndlessReader final : public ReaderOfBytes {
 public:
  void await_end() override { ended_ = true; }
  bool has_ended() const override { return ended_; }

 private:
  std::atomic<bool> ended_ = false;
};

// As when one tensor is the input of collectives on several ranks.
TEST(Storage, AwaitsTheReadersThatSeveralThreadsHaveGivenIt) {
  constexpr std::size_t kThreads = 4, kEach = 300;
  for (const bool written : {true, false}) {
    Storage storage(64);
    std::vector<std::shared_ptr<EndlessReader>> readers;
    for (std::size_t i = 0; i < kThreads * kEach; ++i) {
      readers.push_back(std::make_shared<EndlessReader>());
    }
    {
      std::latch start(kThreads);
      std::vector<std::jthread> threads;
      for (std::size_t t = 0; t < kThreads; ++t) {
        threads.emplace_back([&, t] {
          start.arrive_and_wait();
          for (std::size_t i = 0; i < kEach; ++i) storage.read_by(readers[t * kEach + i]);
        });
      }
    }
    written ? storage.bump_version() : storage.release();
    EXPECT_TRUE(std::ranges::all_of(readers, [](const auto& one) { return one->has_ended(); }));
  }
}

}  // namespace
}  // namespace moegrad::storage_test
