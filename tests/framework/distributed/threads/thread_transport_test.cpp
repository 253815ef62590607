// SPDX-License-Identifier: Apache-2.0
// What only ranks that share memory can do to each other.
#include "framework/distributed/threads/thread_transport.h"

#include <atomic>
#include <latch>
#include <thread>

#include "tests/framework/distributed/collective_testing.h"

namespace moegrad::thread_transport_test {
namespace {

using namespace std::chrono_literals;

TEST(ThreadTransport, TakesNoCallBackThatAPeerReads) {
  // With some of the delays, rank 0 has not begun its part yet.
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    std::latch reading(1);
    std::atomic<bool> gone = false;
    const auto body = [&](RankContext& context) {
      const auto consume = [&, rank = context.rank()](PeerSpans) {
        if (rank == 0) return;
        reading.count_down();
        std::this_thread::sleep_for(10ms);  // for rank 0 to make the mistake
        EXPECT_FALSE(gone);
      };
      try {
        const auto work = context.group()->all_gather({}, Dtype::kFloat32, consume);
        if (context.rank() == 1) return work->wait();
        reading.wait();
        throw ValueError("caught");
      } catch (const ValueError&) {
        gone = true;
      }
    };
    launch(2, body, {.jitter = {.maximum = 20ms, .seed = seed}});
  }
}

TEST(ThreadTransport, NamesNoRankThatHasSummedAndWaitsForTheSameOne) {
  std::latch ended(2);
  const auto errors = test::errors_of(
      3,
      [&](RankContext& context) {
        const auto hold = [&, rank = context.rank()](PeerSpans) {
          if (rank == 2) ended.wait();
        };
        const auto held = context.group()->all_gather(
            {}, Dtype::kFloat32, hold, {.queue = CollectiveQueue::kGather, .deadline = 1min});
        std::vector<float> values(30'000, 1.0F);
        const auto sum =
            context.group()->all_reduce(std::as_writable_bytes(std::span(values)), Dtype::kFloat32,
                                        ReduceOp::kSum, {.queue = CollectiveQueue::kReduce});
        try {
          sum->wait();
        } catch (const CollectiveError&) {
          if (context.rank() != 2) ended.count_down();
          throw;
        }
      },
      200ms);
  EXPECT_THAT(errors[0],
              ::testing::HasSubstr("not executed within 200 ms by rank 2; waiting: ranks 0, 1"));
}

}  // namespace
}  // namespace moegrad::thread_transport_test
