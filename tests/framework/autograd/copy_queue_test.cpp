// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/copy_queue.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <future>
#include <vector>

#include "framework/runtime/error.h"
#include "framework/runtime/rank_context.h"
#include "tests/testing.h"

namespace moegrad::copy_queue_test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Bytes = std::vector<std::byte>;

constexpr std::int64_t kPiece = CopyQueue::kPiece;

Bytes pattern(std::int64_t size, int seed) {
  Bytes bytes(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(i * 7 + i / 999 + static_cast<std::size_t>(seed));
  }
  return bytes;
}

// A copy from bytes to others.
struct Moved {
  Moved(std::int64_t size, int seed) : from(pattern(size, seed)), to(from.size()) {}
  CopyQueue::CopyPtr over(CopyQueue& queue, CopyPriority priority) {
    return queue.begin([this] { return from.data(); }, to.data(), std::ssize(from), priority);
  }
  Bytes from, to;
};

// Keeps the queue until it is opened.
struct Gate {
  explicit Gate(CopyQueue& queue)
      : copy(queue.begin(
            [this] {
              has_begun.set_value();
              opened.get_future().wait();
              return source.data();
            },
            target.data(), 8, CopyPriority::kNow)) {
    has_begun.get_future().wait();
  }
  std::promise<void> has_begun, opened;
  Bytes source = pattern(8, 1), target = Bytes(8);
  CopyQueue::CopyPtr copy;
};

TEST(CopyQueue, MovesAllBytesWhateverTheirNumber) {
  CopyQueue queue({}, {});
  for (const std::int64_t size :
       {std::int64_t{0}, std::int64_t{1}, kPiece - 1, kPiece, kPiece + 1, 3 * kPiece + 17}) {
    Moved moved(size, 3);
    moved.over(queue, CopyPriority::kOut)->wait();
    EXPECT_EQ(moved.from, moved.to) << size;
  }
}

TEST(CopyQueue, GoesByPriorityAndThenInOrder) {
  CopyQueue queue({}, {});
  std::vector<int> order;  // written by the queue's thread alone until all have ended
  std::vector<Moved> all(6, Moved(64, 1));
  std::vector<CopyQueue::CopyPtr> copies;
  Gate gate(queue);
  const CopyPriority priorities[] = {CopyPriority::kOut, CopyPriority::kAhead, CopyPriority::kNow,
                                     CopyPriority::kOut, CopyPriority::kAhead, CopyPriority::kNow};
  for (int i = 0; i < 6; ++i) {
    auto& moved = all[static_cast<std::size_t>(i)];
    copies.push_back(queue.begin(
        [&order, &moved, i] {
          order.push_back(i);
          return moved.from.data();
        },
        moved.to.data(), 64, priorities[i]));
  }
  gate.opened.set_value();
  for (const auto& copy : copies) copy->wait();
  EXPECT_EQ(order, (std::vector<int>{2, 5, 1, 4, 0, 3}));
}

// The one that gives way is 40 ms on its way, of which 10 are for its first piece.
TEST(CopyQueue, GivesWayBetweenPieces) {
  CopyQueue queue({.bytes_per_second = kPiece / 0.01}, {});
  Moved large(4 * kPiece, 1), small(100, 2);
  std::promise<void> has_begun;
  const auto out = queue.begin(
      [&] {
        has_begun.set_value();
        return large.from.data();
      },
      large.to.data(), 4 * kPiece, CopyPriority::kOut);
  has_begun.get_future().wait();
  const auto begin = Clock::now();
  small.over(queue, CopyPriority::kAhead)->wait();
  EXPECT_FALSE(out->has_ended());
  EXPECT_FALSE(queue.take_back(out));  // it has begun
  out->wait();
  EXPECT_GE(Clock::now() - begin, 30ms);
  EXPECT_EQ(large.from, large.to);
  EXPECT_EQ(small.from, small.to);
}

TEST(CopyQueue, LatencyKeepsNoOtherFromTheLink) {
  CopyQueue queue({.latency = 1s}, {});
  std::vector<Moved> all(4, Moved(8, 1));
  const auto first = all[0].over(queue, CopyPriority::kOut);
  for (std::size_t i = 1; i < 3; ++i) all[i].over(queue, CopyPriority::kOut);
  bool has_arrived = true;  // the first, when the last begins
  const auto last = queue.begin(
      [&] {
        has_arrived = first->has_ended();
        return all[3].from.data();
      },
      all[3].to.data(), 8, CopyPriority::kOut);
  last->wait();
  EXPECT_FALSE(has_arrived);
}

TEST(CopyQueue, DelaysEachCopyAsItsJitterSays) {
  const Jitter jitter{.maximum = 20ms, .seed = 3};
  std::chrono::nanoseconds all{0};
  for (int i = 0; i < 5; ++i) all += jitter.delay(RankContext::current().rank(), "swap", i);
  CopyQueue queue({}, jitter);
  const auto begin = Clock::now();
  Moved moved(8, 1);
  for (int i = 0; i < 5; ++i) moved.over(queue, CopyPriority::kOut)->wait();
  EXPECT_GT(all, 0ns);
  EXPECT_GE(Clock::now() - begin, all);
}

TEST(CopyQueue, TakesBackWhatHasNotBegun) {
  CopyQueue queue({}, {});
  Moved moved(64, 1);
  Gate gate(queue);
  const auto copy = moved.over(queue, CopyPriority::kOut);
  EXPECT_FALSE(queue.take_back(gate.copy));
  EXPECT_FALSE(copy->has_ended());
  EXPECT_TRUE(queue.take_back(copy));
  EXPECT_FALSE(queue.take_back(copy));
  copy->wait();
  gate.opened.set_value();
  gate.copy->wait();
  EXPECT_EQ(moved.to, Bytes(64));
  EXPECT_EQ(gate.source, gate.target);
}

TEST(CopyQueue, ThrowsWhatWentWrongAndGoesOn) {
  CopyQueue queue({}, {});
  const auto lost = queue.begin([]() -> const std::byte* { throw Error("lost"); }, nullptr,
                                2 * kPiece, CopyPriority::kOut);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(test::message_of<Error>([&] { lost->wait(); }), "lost");
  }
  Moved moved(64, 1);
  moved.over(queue, CopyPriority::kOut)->wait();
  EXPECT_EQ(moved.from, moved.to);
}

TEST(CopyQueue, EndsAfterTheCopiesThatHaveBeenAskedFor) {
  Moved first(2 * kPiece, 1), second(10, 2);
  {
    CopyQueue queue({}, {.maximum = 2ms});
    first.over(queue, CopyPriority::kOut);
    second.over(queue, CopyPriority::kAhead);
  }
  EXPECT_EQ(first.from, first.to);
  EXPECT_EQ(second.from, second.to);
}

}  // namespace
}  // namespace moegrad::copy_queue_test
