// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/launch.h"

#include <atomic>
#include <limits>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "framework/autograd/anomaly.h"
#include "framework/distributed/slow_storage.h"
#include "framework/runtime/grad_mode.h"
#include "framework/tensor/meta.h"
#include "tests/framework/distributed/collective_testing.h"

namespace moegrad::launch_test {
namespace {

using test::error_message;

TEST(Launch, GivesEveryRankItsContextAndTheGroupOfAll) {
  std::vector<int> seen(4, -1);
  launch(4,
         [&](RankContext& context) {
           EXPECT_EQ(&RankContext::current(), &context);
           EXPECT_EQ(context.world_size(), 4);
           EXPECT_EQ(context.pool().threads(), 2);
           EXPECT_EQ(context.group()->rank(), context.rank());
           EXPECT_EQ(context.group()->size(), 4);
           EXPECT_EQ(context.group()->name(), "world");
           seen[static_cast<std::size_t>(context.rank())] = context.rank();
         },
         {.threads_per_rank = 2});
  EXPECT_EQ(seen, (std::vector{0, 1, 2, 3}));
}

// Nothing of a rank is needed to start ranks, nor to write a file.
TEST(Launch, MayBeCalledInAThreadThatBelongsToNoRank) {
  std::jthread([] {
    EXPECT_EQ(RankContext::find(), nullptr);
    const SlowStorage disk("reading");
    std::atomic<int> ranks = 0;
    launch(2, [&](RankContext& context) {
      ++ranks;
      context.group()->barrier()->wait();
    });
    EXPECT_EQ(ranks, 2);
  });
}

TEST(Launch, RejectsAWorldOfNoRanks) {
  EXPECT_EQ(error_message<ValueError>([] { launch(0, [](RankContext&) {}); }),
            "launch: world_size must be at least 1, got 0");
}

TEST(Launch, RejectsDeadlinesAndJitterThatNoClockCanHold) {
  using std::chrono::milliseconds, std::chrono::nanoseconds;
  const auto message = [](const LaunchOptions& options) {
    return error_message<ValueError>([&] {
      launch(
          1, [](RankContext&) {}, options);
    });
  };
  const std::chrono::hours day(24);
  for (const auto deadline :
       {milliseconds(0), milliseconds(-1), day + milliseconds(1), milliseconds::max()}) {
    EXPECT_EQ(message({.deadline = deadline}), "launch: deadline must be in (0, 24 h], got " +
                                                   std::to_string(deadline.count()) + " ms");
  }
  for (const auto maximum : {nanoseconds(-1), day + nanoseconds(1), nanoseconds::max()}) {
    EXPECT_EQ(
        message({.jitter = {.maximum = maximum}}),
        "launch: jitter must be in [0, 24 h], got " + std::to_string(maximum.count()) + " ns");
  }
  launch(2, [](RankContext& context) { context.group()->barrier()->wait(); },
         {.deadline = day, .link = {.latency = nanoseconds(1)}});
}

TEST(Launch, RejectsThreadsAndLinksThatCannotBe) {
  const auto message = [](const LaunchOptions& options) {
    return error_message<ValueError>([&] {
      launch(
          1, [](RankContext&) {}, options);
    });
  };
  EXPECT_EQ(message({.threads_per_rank = 0}), "launch: threads_per_rank must be at least 1, got 0");
  EXPECT_EQ(message({.link = {.latency = std::chrono::nanoseconds(-1)}}),
            "launch: the latency of link must be in [0, 24 h], got -1 ns");
  EXPECT_EQ(
      message({.link = {.between_hosts = {.latency = std::chrono::hours(25)}}}),
      "launch: the latency of link.between_hosts must be in [0, 24 h], got 90000000000000 ns");
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double rate : {-4.0, 0.5, nan}) {
    EXPECT_THAT(message({.link = {.bytes_per_second = rate}}),
                ::testing::StartsWith("launch: bytes_per_second of link must be 0 or at least 1"));
    EXPECT_THAT(message({.link = {.between_hosts = {.bytes_per_second = rate}}}),
                ::testing::StartsWith("launch: bytes_per_second of link.between_hosts must be 0"));
  }
  for (const double by : {0.0, -1.0, nan, std::numeric_limits<double>::infinity()}) {
    EXPECT_THAT(message({.link = {.slow_by = by}}),
                ::testing::StartsWith("launch: slow_by of link must be positive, got "));
  }
  EXPECT_EQ(message({.link = {.ranks_per_host = -1}}),
            "launch: ranks_per_host of link must be at least 0, got -1");
}

TEST(Launch, RethrowsTheExceptionAndNotItsConsequences) {
  for (int round = 0; round < 20; ++round) {
    const auto body = [](RankContext& context) {
      if (context.rank() == 2) throw std::domain_error("the original");
      context.group()->barrier()->wait();
    };
    EXPECT_EQ(error_message<std::domain_error>([&] { launch(4, body); }), "the original");
  }
}

TEST(Launch, RethrowsWhatIsNoStdException) {
  EXPECT_THROW(launch(2,
                      [](RankContext& context) {
                        if (context.rank() == 1) throw 42;  // NOLINT
                        context.group()->barrier()->wait();
                      }),
               int);
}

TEST(Launch, RethrowsAMismatchThatNoOneCaught) {
  const auto body = [](RankContext& context) {
    std::vector<std::byte> buffer(context.rank() == 0 ? 4 : 8);
    context.group()->all_reduce(buffer, Dtype::kFloat32, ReduceOp::kSum)->wait();
  };
  EXPECT_EQ(
      error_message<CollectiveError>([&] { launch(2, body, {.on_failure = [](auto&) {}}); }),
      "all_reduce [group world, sequence 0]: rank 0 called all_reduce(sum) of 1 float32, rank "
      "1 all_reduce(sum) of 2 float32");
}

TEST(Launch, CarriesGradModeAndAnomalyModeToTheRanksAndNoOtherGuard) {
  const auto modes = [] {
    std::vector<std::pair<bool, bool>> seen(2);
    launch(2, [&](RankContext& context) {
      EXPECT_FALSE(meta_enabled());
      seen[static_cast<std::size_t>(context.rank())] = {grad_enabled(),
                                                        anomaly_detection_enabled()};
      const GradModeGuard own(true);
      EXPECT_TRUE(grad_enabled());
    });
    EXPECT_EQ(seen[0], seen[1]);
    return seen[0];
  };
  EXPECT_EQ(modes(), std::pair(true, false));
  {
    const NoGradGuard no_grad;
    const MetaGuard no_bytes;
    EXPECT_EQ(modes(), std::pair(false, false));
    const AnomalyModeGuard anomaly;
    EXPECT_EQ(modes(), std::pair(false, true));
    EXPECT_FALSE(grad_enabled());
  }
  EXPECT_EQ(modes(), std::pair(true, false));
}

TEST(Launch, CanRunInsideARankOfAnother) {
  std::atomic<int> ranks = 0;
  launch(2, [&](RankContext& outer) {
    launch(2, [&](RankContext& inner) {
      inner.group()->barrier()->wait();
      ++ranks;
    });
    EXPECT_EQ(&RankContext::current(), &outer);
    outer.group()->barrier()->wait();
  });
  EXPECT_EQ(ranks, 4);
}

}  // namespace
}  // namespace moegrad::launch_test
