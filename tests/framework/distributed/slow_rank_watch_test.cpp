// SPDX-License-Identifier: Apache-2.0
// Ranks that really are slow, each in its way, and ranks that are not. The work is sleep, so that
// what is measured does not hang on how many cores there are for it.
#include "framework/distributed/slow_rank_watch.h"

#include <functional>
#include <thread>

#include "framework/distributed/collectives.h"
#include "framework/io/checkpoint_saver.h"
#include "tests/framework/distributed/collective_testing.h"
#include "tests/framework/distributed/hand_shards.h"
#include "tests/framework/io/files.h"
#include "tests/testing.h"

namespace moegrad::slow_rank_watch_test {
namespace {

using namespace std::chrono_literals;
using ::testing::IsEmpty;

constexpr int kRanks = 4;
constexpr int kSlowOne = 2;

struct Run {
  int windows = 4;
  int steps = 4;  // of each window
  LinkModel link = {.latency = 8ms};
  std::chrono::milliseconds compute = 16ms;
  std::function<void(int rank)> more = {};  // after the compute of each step
  bool compares_compute = true;
};

/// The ranks that are named, on rank 0; all others must name the same.
std::vector<SlowRank> watch(const Run& run) {
  std::vector<std::vector<SlowRank>> named(kRanks);
  launch(kRanks,
         [&](RankContext& context) {
           const auto rank = context.rank();
           auto& own = named[static_cast<std::size_t>(rank)];
           SlowRankWatch watch(context, context.group(), run.compares_compute);
           for (int window = 0; window < run.windows; ++window) {
             for (int step = 0; step < run.steps; ++step) {
               {
                 const WorkGuard work(WorkClass::kCompute);
                 std::this_thread::sleep_for(run.compute);
                 std::vector<float> gradient(8, 1.0F);
                 all_reduce(*context.group(), std::span(gradient));
               }
               if (run.more) run.more(rank);
             }
             const auto slow = watch.close_window();
             own.insert(own.end(), slow.begin(), slow.end());
           }
         },
         {.link = run.link});
  for (const auto& own : named) EXPECT_EQ(own, named[0]);
  return named[0];
}

/// On a machine that is busy with other things a small delay does not show, so it is doubled until
/// somebody is named: it must be the slow one, for what it is slow in.
void expect_named(WorkClass what,
                  const std::function<std::vector<SlowRank>(int factor)>& named_with) {
  std::vector<SlowRank> named;
  for (int factor = 1; factor <= 64 && named.empty(); factor *= 2) named = named_with(factor);
  ASSERT_EQ(named.size(), 1U);
  EXPECT_EQ(named[0].rank, kSlowOne);
  EXPECT_EQ(named[0].what, what) << to_string(named[0].what);
  EXPECT_GT(named[0].ratio, 1.3);
}

TEST(SlowRankWatch, NamesASlowLink) {
  expect_named(WorkClass::kCommunication, [](int factor) {
    return watch({.link = {.latency = 8ms, .slow_rank = kSlowOne, .slow_by = 6.0 * factor}});
  });
}

TEST(SlowRankWatch, NamesABusyCore) {
  expect_named(WorkClass::kCompute, [](int factor) {
    return watch({.more = [factor](int rank) {
      const WorkGuard work(WorkClass::kCompute);
      if (rank == kSlowOne) std::this_thread::sleep_for(factor * 40ms);
    }});
  });
}

TEST(SlowRankWatch, NamesNoRankThatHasMoreToComputeByRight) {
  const auto named = watch({.more =
                                [](int rank) {
                                  const WorkGuard work(WorkClass::kCompute);
                                  if (rank == kSlowOne) std::this_thread::sleep_for(80ms);
                                },
                            .compares_compute = false});
  EXPECT_THAT(named, IsEmpty());
}

TEST(SlowRankWatch, NamesSlowData) {
  expect_named(WorkClass::kData, [](int factor) {
    return watch({.more = [factor](int rank) {
      const WorkGuard work(WorkClass::kData);
      std::this_thread::sleep_for(rank == kSlowOne ? factor * 40ms : 1ms);
    }});
  });
}

/// Four windows in each of which a checkpoint is saved.
std::vector<SlowRank> watch_saves(std::chrono::milliseconds delay) {
  const test::TemporaryFolder root;
  std::vector<SlowRank> named;
  launch(kRanks, [&](RankContext& context) {
    const auto rank = context.rank();
    const auto observe = [rank, delay](CheckpointPoint point) {
      // The slow one's own file; and what rank 0 alone does for all, which is no rank's work.
      const bool own_file = point == CheckpointPoint::kTensorWritten && rank == kSlowOne;
      if (own_file || point == CheckpointPoint::kFolderFlushed) std::this_thread::sleep_for(delay);
    };
    const Tensor whole = test::randn({kRanks, 8}, 1, Dtype::kFloat32);
    const Tensor shard = test::shard_of(whole, test::spec_of(whole.shape(), 0, context.group()));
    CheckpointSaver saver(root / "", context.group(), {.observe = observe});
    SlowRankWatch watch(context, context.group());
    for (std::int64_t window = 0; window < 4; ++window) {
      {
        const WorkGuard work(WorkClass::kCompute);
        std::this_thread::sleep_for(40ms);
      }
      saver.save(window, {.tensors = {{"w", shard}}});
      saver.wait();
      for (const auto& slow : watch.close_window()) {
        if (rank == 0) named.push_back(slow);
      }
    }
  });
  return named;
}

TEST(SlowRankWatch, NamesASlowDisk) {
  expect_named(WorkClass::kCheckpoint, [](int factor) { return watch_saves(factor * 200ms); });
}

TEST(SlowRankWatch, NamesNoRankInCleanWindows) {
  EXPECT_THAT(watch({.windows = test::full_suite() ? 100 : 25}), IsEmpty());
}

}  // namespace
}  // namespace moegrad::slow_rank_watch_test
