// SPDX-License-Identifier: Apache-2.0
// Which time a deadline counts: not that of a disk, nor that in which the process does not run.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>

#include "framework/distributed/collective_clock.h"
#include "framework/distributed/slow_storage.h"
#include "tests/framework/distributed/collective_testing.h"

namespace moegrad::deadline_test {
namespace {

using namespace std::chrono_literals;
using test::errors_of;
using ::testing::ElementsAre;

TEST(RunningClock, CountsALongGapAsOneInterval) {
  const RunningClock::time_point start{};
  RunningClock clock(start, 10ms);
  EXPECT_EQ(clock.advance(start + 10ms), 10ms);
  EXPECT_EQ(clock.advance(start + 13ms), 3ms);
  EXPECT_EQ(clock.advance(start + 13ms + 24h), 10ms);  // stopped for a day
  EXPECT_EQ(clock.advance(start + 18ms + 24h), 5ms);
  EXPECT_EQ(clock.elapsed(), 28ms);
}

TEST(RunningClock, NeverRunsBackwards) {
  const RunningClock::time_point start = RunningClock::time_point{} + 1h;
  RunningClock clock(start, 10ms);
  EXPECT_EQ(clock.advance(start - 1min), 0ms);
  EXPECT_EQ(clock.advance(start - 1min + 4ms), 4ms);
  EXPECT_EQ(clock.elapsed(), 4ms);
}

TEST(Deadline, DoesNotCountWhileTheRankThatIsMissingIsExcused) {
  const auto errors = errors_of(
      3,
      [](RankContext& context) {
        if (context.rank() == 1) {
          const SlowStorage disk("reading");
          std::this_thread::sleep_for(600ms);
        }
        context.group()->barrier()->wait();
      },
      100ms);
  EXPECT_THAT(errors, ElementsAre("", "", ""));
}

/// A barrier that fails.
void wait_and_tell(ProcessGroup& group, test::RankLatch& failed) {
  try {
    group.barrier()->wait();
  } catch (const CollectiveError&) {
    failed.count_down();
    throw;
  }
}

TEST(Deadline, CountsAgainOnceTheExcuseHasEnded) {
  test::RankLatch failed(1);
  const auto errors = errors_of(
      2,
      [&](RankContext& context) {
        if (context.rank() == 1) {
          { const SlowStorage disk("reading"); }
          failed.wait();
          return;
        }
        wait_and_tell(*context.group(), failed);
      },
      100ms);
  EXPECT_EQ(errors[0],
            "barrier [group world, sequence 0]: not joined within 100 ms by rank 1; waiting: rank "
            "0");
}

TEST(Deadline, CountsForARankWithoutExcuseWhileAnotherHasOne) {
  test::RankLatch failed(1);
  const auto errors = errors_of(
      3,
      [&](RankContext& context) {
        if (context.rank() == 0) {
          const int pair[] = {0, 1};
          const auto group = context.group()->subgroup(pair, "pair");
          wait_and_tell(*group, failed);
        } else if (context.rank() == 1) {
          const int pair[] = {0, 1};
          const auto group = context.group()->subgroup(pair, "pair");
          failed.wait();  // stuck, and no disk of its own
        } else {
          const SlowStorage disk("reading");
          failed.wait();
        }
      },
      100ms);
  EXPECT_EQ(errors[0],
            "barrier [group pair, sequence 1]: not joined within 100 ms by rank 1; waiting: rank "
            "0");
}

TEST(Deadline, OfASubgroupDoesNotCountWhileItExcusesTheRankThatIsMissing) {
  const auto errors = errors_of(
      2,
      [](RankContext& context) {
        const int both[] = {0, 1};
        const auto saving = context.group()->subgroup(both, "checkpoint");
        if (context.rank() == 1) {
          const auto excuse = saving->excuse("saving");
          std::this_thread::sleep_for(600ms);
        }
        saving->barrier()->wait();
      },
      100ms);
  EXPECT_EQ(errors[0], "");
  EXPECT_EQ(errors[1], "");
}

// A save in the background excuses nobody from the steps.
TEST(Deadline, OfAnotherGroupCountsWhileASubgroupIsExcused) {
  test::RankLatch failed(1);
  const auto errors = errors_of(
      2,
      [&](RankContext& context) {
        const int both[] = {0, 1};
        const auto saving = context.group()->subgroup(both, "checkpoint");
        if (context.rank() == 1) {
          const SlowStorage disk(saving, "saving");
          failed.wait();
          return;
        }
        const auto excused = saving->barrier();
        wait_and_tell(*context.group(), failed);
      },
      100ms);
  EXPECT_EQ(errors[0],
            "barrier [group world, sequence 0]: not joined within 100 ms by rank 1; waiting: rank "
            "0");
}

TEST(Deadline, IsWarnedOfWhenAnExcuseTakesLonger) {
  ::testing::internal::CaptureStderr();
  const auto start = std::chrono::steady_clock::now();
  launch(2,
         [](RankContext& context) {
           if (context.rank() == 1) {
             const SlowStorage outer("saving step 8");
             const SlowStorage inner("flushing a file");  // one warning is enough
             std::this_thread::sleep_for(350ms);
           }
           { const SlowStorage quick("reading"); }
           context.group()->barrier()->wait();
         },
         {.deadline = 200ms});
  const std::chrono::duration<double> all = std::chrono::steady_clock::now() - start;
  const auto log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, ::testing::ContainsRegex(
                       "warning .rank 0. rank 1: saving step 8 has taken [0-9.]+ s and goes on"));
  const std::string ended = "warning [rank 1] rank 1: saving step 8 took ";
  const auto at = log.find(ended);
  ASSERT_NE(at, log.npos) << log;
  const double took = std::stod(log.substr(at + ended.size()));
  EXPECT_GE(took, 0.3);
  EXPECT_LE(took, all.count() + 0.1);
  EXPECT_THAT(log, ::testing::Not(::testing::HasSubstr("flushing")));
  EXPECT_THAT(log, ::testing::Not(::testing::HasSubstr("reading")));
}

// A child process trains nothing: rank 1 is slow, by less than the deadline, and the whole process
// is stopped for much longer meanwhile.
TEST(Deadline, DoesNotCountWhileTheProcessIsStopped) {
  int began[2];
  ASSERT_EQ(pipe(began), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto errors = errors_of(
        2,
        [&](RankContext& context) {
          for (int round = 0; round < 20; ++round) {
            if (context.rank() == 1) std::this_thread::sleep_for(50ms);
            context.group()->barrier()->wait();
            if (context.rank() == 0 && round == 2) [[maybe_unused]]
              auto n = write(began[1], "x", 1);
          }
        },
        1000ms);
    _exit(errors == std::vector<std::string>{"", ""} ? 0 : 3);
  }
  char byte = 0;
  ASSERT_EQ(read(began[0], &byte, 1), 1);
  kill(child, SIGSTOP);
  std::this_thread::sleep_for(2500ms);
  kill(child, SIGCONT);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  close(began[0]);
  close(began[1]);
}

TEST(Deadline, OfAPayloadDoesNotCountWhileTheLinkDelivers) {
  launch(2,
         [](RankContext& context) {
           std::vector<float> values(4'096, 1.0F);
           all_reduce(*context.group(), std::span(values));
           EXPECT_EQ(values.back(), 2.0F);
         },
         {.deadline = 100ms, .link = {.latency = 300ms}, .piece_bytes = 64});
}

}  // namespace
}  // namespace moegrad::deadline_test
