// SPDX-License-Identifier: Apache-2.0
// A rank that never returns after a failure: it is named, and the process ends if it shall.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <latch>
#include <thread>

#include "tests/framework/distributed/collective_testing.h"
#include "tests/framework/io/files.h"

namespace moegrad::stuck_rank_test {
namespace {

using namespace std::chrono_literals;
using test::error_message;

[[noreturn]] void never_return() {
  while (true) std::this_thread::sleep_for(1h);
}

void fail_while_ranks_are_stuck(int ranks, int stuck_from, const LaunchOptions& options) {
  launch(
      ranks,
      [&](RankContext& context) {
        if (context.rank() >= stuck_from) never_return();
        context.group()->barrier({.label = "step"})->wait();
      },
      options);
}

TEST(StuckRank, EndsTheProcessIfItShall) {
  EXPECT_EXIT(
      fail_while_ranks_are_stuck(2, 1, {.deadline = 50ms, .exit_after = 100ms}),
      ::testing::ExitedWithCode(1),
      "error .rank 0. launch: rank 1 has not returned 100 ms after a failure, the process ends; "
      "the failure: aborted by barrier .group world, sequence 0, step.: not joined within 50 ms by "
      "rank 1; waiting: rank 0");
}

TEST(StuckRank, IsNamedWithAllOthers) {
  EXPECT_EXIT(fail_while_ranks_are_stuck(4, 1, {.deadline = 50ms, .exit_after = 100ms}),
              ::testing::ExitedWithCode(1),
              "launch: ranks 1-3 have not returned 100 ms after a failure, the process ends");
}

TEST(StuckRank, WhoseBodyHasEndedIsNoticed) {
  // What hangs is a consumer, on the communication thread; nobody waits for its Work.
  EXPECT_EXIT(launch(2,
                     [](RankContext& context) {
                       const auto rank = context.rank();
                       auto* const gathered = new WorkPtr(
                           context.group()->all_gather({}, Dtype::kFloat32, [rank](PeerSpans) {
                             if (rank == 1) never_return();
                           }));
                       if (rank == 0) (*gathered)->wait();
                     },
                     {.deadline = 50ms, .exit_after = 100ms}),
              ::testing::ExitedWithCode(1), "launch: rank 1 has not returned 100 ms after");
}

TEST(StuckRank, IsReportedThoughNoOtherRankEnds) {
  // All are stuck, so the report of the failure comes with that.
  EXPECT_EXIT(launch(2,
                     [](RankContext& context) {
                       if (context.rank() == 1) never_return();
                       const auto work = context.group()->barrier();
                       never_return();
                     },
                     {.deadline = 50ms, .exit_after = 100ms}),
              ::testing::ExitedWithCode(1),
              "barrier .group world, sequence 0.: not joined within 50 ms by rank 1; waiting: rank "
              "0\n(.*\n)*.*launch: ranks 0, 1 have not returned");
}

TEST(StuckRank, IsWaitedForByDefaultAndThatIsSaid) {
  const test::TemporaryFolder folder;
  const auto path = folder / "log";
  const int log = open(path.c_str(), O_WRONLY | O_CREAT, 0600);
  const int before = dup(STDERR_FILENO);
  dup2(log, STDERR_FILENO);
  const auto message = error_message<CollectiveError>([&] {
    launch(2,
           [&](RankContext& context) {
             if (context.rank() == 0) context.group()->barrier()->wait();
             // Rank 1 returns once it has been said that it does not.
             while (test::read_file(path).find("launch() waits") == std::string::npos) {
               std::this_thread::sleep_for(1ms);
             }
           },
           {.deadline = 50ms, .on_failure = [](const std::string&) {}});
  });
  dup2(before, STDERR_FILENO);
  close(before);
  close(log);
  EXPECT_EQ(
      message,
      "barrier [group world, sequence 0]: not joined within 50 ms by rank 1; waiting: rank 0");
  EXPECT_THAT(
      test::read_file(path),
      ::testing::ContainsRegex("error .rank 0. launch: rank 1 has not returned 50 ms after a "
                               "failure, launch\\(\\) waits; the failure: aborted by barrier"));
}

TEST(StuckRank, RanksThatReturnInTimeEndNothing) {
  EXPECT_EQ(error_message<ValueError>([] {
              launch(2,
                     [](RankContext& context) {
                       if (context.rank() == 1) throw ValueError("of rank 1");
                       context.group()->barrier()->wait();
                     },
                     {.exit_after = 10s});
            }),
            "of rank 1");
}

TEST(StuckRank, RejectsATimeThatNoClockCanHold) {
  for (const auto time : {0ms, -1ms, std::chrono::milliseconds(24h) + 1ms}) {
    EXPECT_EQ(
        error_message<ValueError>([&] { launch(1, [](RankContext&) {}, {.exit_after = time}); }),
        "launch: exit_after must be in (0, 24 h], got " + std::to_string(time.count()) + " ms");
  }
}

// Rank 1 does not come, and the process gets SIGTERM.
void wait_for_sigterm(const LaunchOptions& options) {
  std::latch joined(1);
  launch(
      2,
      [&](RankContext& context) {
        if (context.rank() == 1) {
          joined.wait();
          raise(SIGTERM);
          never_return();
        }
        const auto work = context.group()->barrier({.label = "step"});
        joined.count_down();
        work->wait();
      },
      options);
}

TEST(StuckRank, SaysOnSigtermWhatItIsIn) {
  EXPECT_EXIT(wait_for_sigterm({}), ::testing::KilledBySignal(SIGTERM),
              "rank 0 on host .*: SIGTERM in group world  sequence 0  barrier  step\n"
              "last operations of this rank, the oldest first:\n"
              "  joined    group world  sequence 0  barrier  step\n"
              "rank 1 on host .*: SIGTERM outside collectives\n");
}

// A program that handles SIGTERM goes on, and its standard error is for its own messages.
TEST(StuckRank, SaysItInFilesWhereTheProgramHandlesSigterm) {
  const test::TemporaryFolder folder;
  const auto end = [&] {
    signal(SIGTERM, [](int) { _exit(7); });
    wait_for_sigterm({.last_operations_folder = (folder / ".").string()});
  };
  EXPECT_EXIT(end(), ::testing::ExitedWithCode(7), "^$");
  for (const auto* name : {"last_operations.rank0.txt", "last_operations.rank1.txt"}) {
    EXPECT_THAT(test::read_file(folder / name), ::testing::HasSubstr(": SIGTERM "));
  }
}

TEST(LastOperationsOfALaunch, AreInFilesAfterAFailureButNotWhereARankThrew) {
  const test::TemporaryFolder folder;
  const auto file = folder / "last_operations.rank0.txt";
  const auto run = [&](const std::string& where, bool throws) {
    const auto body = [throws](RankContext& context) {
      if (context.rank() == 0) context.group()->barrier({.label = "step"})->wait();
      if (throws) throw ValueError("boom");
    };
    ::testing::internal::CaptureStderr();
    EXPECT_THROW(
        launch(2, body, {.on_failure = [](const std::string&) {}, .last_operations_folder = where}),
        Error);
    return ::testing::internal::GetCapturedStderr();
  };
  run((folder / ".").string(), true);
  EXPECT_FALSE(std::filesystem::exists(file));
  EXPECT_EQ(run((folder / "missing").string(), false), "");  // the body has not made it
  run((folder / ".").string(), false);
  EXPECT_THAT(test::read_file(file), ::testing::HasSubstr("barrier  step\n"));
}

}  // namespace
}  // namespace moegrad::stuck_rank_test
