// SPDX-License-Identifier: Apache-2.0
// What launch_mpi() itself promises. Runs on eight processes that do the same side by side.
#include "framework/distributed/mpi/launch_mpi.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <numeric>
#include <sstream>
#include <thread>

#include "framework/distributed/collectives.h"
#include "framework/distributed/slow_storage.h"
#include "tests/framework/distributed/collective_testing.h"

namespace moegrad::launch_mpi_test {
namespace {

using test::error_message;

int own_rank() { return mpi_environment()->rank; }
int num_processes() { return mpi_environment()->size; }

/// For launches that are meant to fail.
LaunchOptions quiet(std::chrono::milliseconds deadline = LaunchOptions().deadline) {
  return {.deadline = deadline, .on_failure = [](const std::string&) {}};
}

TEST(LaunchMpi, GivesEachProcessARankAndTheGroupOfAll) {
  int ran = 0;
  launch_mpi([&](RankContext& context) {
    ++ran;
    EXPECT_EQ(context.rank(), own_rank());
    EXPECT_EQ(context.world_size(), num_processes());
    EXPECT_EQ(context.group()->size(), num_processes());
    EXPECT_EQ(context.group()->name(), "world");
    EXPECT_EQ(all_reduce<std::int64_t>(*context.group(), 1), num_processes());
  });
  EXPECT_EQ(ran, 1);
  launch_mpi(3, [&](RankContext& context) {
    ++ran;
    EXPECT_EQ(context.world_size(), 3);
  });
  EXPECT_EQ(ran, own_rank() < 3 ? 2 : 1);
}

// The rank that has thrown has its own exception; the others know whose and what.
TEST(LaunchMpi, FailsOnAllProcessesAndMayBeCalledAgain) {
  for (int round = 0; round < 3; ++round) {
    const auto body = [](RankContext& context) {
      if (context.rank() == 1) throw std::domain_error("boom");
      context.group()->barrier()->wait();
    };
    try {
      launch_mpi(3, body, quiet());
      ADD_FAILURE() << "no exception";
    } catch (const std::domain_error& error) {
      EXPECT_EQ(own_rank(), 1);
      EXPECT_STREQ(error.what(), "boom");
    } catch (const CollectiveError& error) {
      const std::string message = error.what();
      if (own_rank() < 3) {
        EXPECT_EQ(message, "barrier [group world, sequence 0]: rank 1 failed: boom");
      } else {
        EXPECT_THAT(message, ::testing::MatchesRegex("launch_mpi: rank [01] failed: .*boom"));
      }
    }
  }
}

// Gathers are in flight, some of which the others have joined, when a body throws.
TEST(LaunchMpi, IsSafeWhileBuffersGoOutOfScope) {
  for (int round = 0; round < 8; ++round) {
    const auto body = [&](RankContext& context) {
      std::vector<float> input(20'000, 1.0F), output(60'000);
      std::vector<WorkPtr> works;
      for (int i = 0; i < 8; ++i) {
        const auto bytes = std::as_writable_bytes(std::span(output));
        works.push_back(i % 2 == 0 ? context.group()->all_gather(std::as_bytes(std::span(input)),
                                                                 bytes, Dtype::kFloat32)
                                   : context.group()->all_gather(
                                         std::as_bytes(std::span(input)), Dtype::kFloat32,
                                         [&](PeerSpans peers) { EXPECT_EQ(peers.size(), 3U); }));
        if (context.rank() == 1 && i == round) throw ValueError("boom");
      }
      for (const auto& work : works) work->wait();
    };
    EXPECT_THROW(launch_mpi(3, body, quiet()), Error);
  }
}

TEST(LaunchMpi, ReportsOnRankZeroWhatEachRankDidLast) {
  std::string report;
  const auto body = [](RankContext& context) {
    context.group()->barrier({.label = "first"})->wait();
    std::vector<float> values(context.rank() == 2 ? 3 : 4);
    all_reduce(*context.group(), std::span(values), ReduceOp::kSum, {.label = "second"});
  };
  EXPECT_THROW(launch_mpi(3, body, {.on_failure = [&](const std::string& text) { report = text; }}),
               CollectiveError);
  if (own_rank() >= 3) return;
  EXPECT_THAT(report, ::testing::HasSubstr("all_reduce(sum) of 3 float32"));
  EXPECT_THAT(report, ::testing::ContainsRegex("done +group world +sequence 0 +barrier +first"));
  // Rank 2 has told rank 0. A rank may hear of the failure before it issues its own call.
  if (own_rank() != 1) {
    EXPECT_THAT(
        report,
        ::testing::ContainsRegex(
            "(issued|joined) +group world +sequence 1 +all_reduce.sum. of 3 float32 +second"));
  }
}

// The numbers that follow `word` in a report, from where the report of `rank` begins.
std::vector<int> numbers_after(const std::string& report, const std::string& rank,
                               const std::string& word) {
  std::vector<int> numbers;
  std::istringstream words(report.substr(std::min(report.find(rank), report.size())));
  for (std::string each; words >> each;) {
    if (each == word && words >> each) numbers.push_back(std::stoi(each));
  }
  return numbers;
}

// Rank 1 fails after more calls than it can tell rank 0 about.
TEST(LaunchMpi, ReportsTheLatestOperationsTheOldestFirst) {
  std::string report;
  const auto body = [](RankContext& context) {
    const std::string label(400, 'x');
    for (int i = 0; i < 300; ++i) context.group()->barrier({.label = label})->wait();
    if (context.rank() == 1) throw ValueError("boom");
    context.group()->barrier()->wait();
  };
  EXPECT_THROW(launch_mpi(2, body, {.on_failure = [&](const std::string& text) { report = text; }}),
               Error);
  if (own_rank() != 0) return;
  // Rank 0 may hear of the failure before it issues its last call. Then both have done the same.
  const std::string alone = "\nrank 1\n", both = "\nranks 0, 1\n";
  const bool same = report.find(both) != std::string::npos;
  const auto numbers = numbers_after(report, same ? both : alone, "sequence");
  ASSERT_GE(numbers.size(), 5U) << report;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    EXPECT_EQ(numbers[i], 300 - static_cast<int>(numbers.size() - i)) << report;
  }
}

// What a message about it takes is cut where the processes tell each other.
TEST(LaunchMpi, FailsWithALongMessageAndMayBeCalledAgain) {
  const std::string text(10'000, 'x');
  const auto body = [&](RankContext& context) {
    if (context.rank() == 1) throw ValueError(text);
    context.group()->barrier()->wait();
  };
  EXPECT_THROW(launch_mpi(3, body, quiet()), Error);
  launch_mpi(3, [](RankContext& context) { context.group()->barrier()->wait(); });
}

TEST(LaunchMpi, MakesGroupsThatDifferThoughProcessesHaveMadeDifferentNumbers) {
  launch_mpi(3, [](RankContext& context) {
    const int pairs[][2] = {{0, 1}, {1, 2}, {0, 2}};
    std::vector<std::shared_ptr<ProcessGroup>> groups;
    for (const auto& pair : pairs) {
      if (std::ranges::find(pair, context.rank()) == std::end(pair)) continue;
      groups.push_back(context.group()->subgroup(pair, "of two"));
    }
    ASSERT_EQ(groups.size(), 2U);
    for (const auto& group : groups) {
      const auto& ranks = group->ranks();
      EXPECT_EQ(all_reduce<std::int64_t>(*group, context.rank()), ranks[0] + ranks[1]);
    }
  });
}

// More than a header has room for.
TEST(LaunchMpi, SumsManyLongParts) {
  launch_mpi(2, [](RankContext& context) {
    constexpr std::size_t kParts = 140, kFloats = (256 << 10) / sizeof(float);
    std::vector<std::vector<float>> values(kParts, std::vector<float>(kFloats));
    ByteParts parts;
    for (std::size_t i = 0; i < kParts; ++i) {
      std::ranges::fill(values[i], static_cast<float>(i + 1000 * context.rank()));
      parts.push_back(std::as_bytes(std::span(values[i])));
    }
    std::vector<float> sum(kParts / 2 * kFloats);
    context.group()
        ->reduce_scatter(parts, std::as_writable_bytes(std::span(sum)), Dtype::kFloat32,
                         ReduceOp::kSum)
        ->wait();
    for (std::size_t i = 0; i < kParts / 2; ++i) {
      const auto part = i + (context.rank() == 0 ? 0 : kParts / 2);
      EXPECT_EQ(sum[i * kFloats], static_cast<float>(2 * part + 1000));
      EXPECT_EQ(sum[(i + 1) * kFloats - 1], static_cast<float>(2 * part + 1000));
    }
  });
}

TEST(LaunchMpi, IsOneAtATime) {
  launch_mpi([](RankContext& context) {
    context.group()->barrier()->wait();
    std::thread other([] {
      EXPECT_EQ(error_message<Error>([] { launch_mpi([](RankContext&) {}); }),
                "launch_mpi: must not be called while another launch is on");
    });
    other.join();
    context.group()->barrier()->wait();
  });
}

// A fork does not have the thread that calls MPI. It ends when what the launches have made is gone,
// before a sanitizer misses what that thread had reached.
struct EndOfForks {
  ~EndOfForks() {
    if (getpid() != pid) _exit(7);
  }
  const pid_t pid = getpid();
} const end_of_forks;

TEST(LaunchMpi, LeavesAForkedProcessFreeToExit) {
  launch_mpi([](RankContext& context) {
    context.group()->barrier()->wait();
    std::cout << std::flush;
    const auto child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) std::exit(0);  // NOLINT(concurrency-mt-unsafe)
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
    context.group()->barrier()->wait();
  });
}

// A consumer holds up the thread of rank 2 that calls MPI, after it has joined a long sum, and
// before the others have.
TEST(LaunchMpi, NamesTheRankAloneThatDoesNotSendWhatItHasAnnounced) {
  const auto body = [](RankContext& context) {
    auto& group = *context.group();
    std::vector<float> values(1 << 20, 1.0F);
    const std::byte one[4] = {};
    const auto sum = [&] {
      const auto bytes = std::as_writable_bytes(std::span(values));
      return group.all_reduce(bytes, Dtype::kFloat32, ReduceOp::kSum, {.label = "long"});
    };
    const bool is_held_up = context.rank() == 2;
    WorkPtr joined = is_held_up ? sum() : nullptr;
    const auto hold_up = [&](PeerSpans) {
      if (is_held_up) std::this_thread::sleep_for(std::chrono::milliseconds(800));
    };
    const auto gather =
        group.all_gather(one, Dtype::kFloat32, hold_up, {.queue = CollectiveQueue::kGather});
    try {
      if (!is_held_up) {
        gather->wait();
        joined = sum();
      }
      joined->wait();
      ADD_FAILURE() << "no exception";
    } catch (const CollectiveError& error) {
      EXPECT_STREQ(error.what(),
                   "all_reduce [group world, sequence 0, long]: not executed within 400 ms by rank "
                   "2; waiting: ranks 0, 1, 3");
      throw;
    }
  };
  auto options = quiet(std::chrono::milliseconds(400));
  options.piece_bytes = 16 << 10;
  EXPECT_THROW(launch_mpi(4, body, options), CollectiveError);
}

// The thread of the rank that calls MPI would wait for itself.
TEST(LaunchMpi, FailsWhereAConsumerWaits) {
  const auto body = [](RankContext& context) {
    auto& group = *context.group();
    group.all_gather({}, Dtype::kFloat32, [&](PeerSpans) { group.barrier()->wait(); })->wait();
  };
  const auto message = error_message<CollectiveError>([&] { launch_mpi(body, quiet()); });
  EXPECT_THAT(message,
              ::testing::HasSubstr("a consumer cannot wait for a collective, it holds up the "
                                   "thread that executes them"));
}

TEST(LaunchMpi, FailsOnAllProcessesWhereAConsumerThrows) {
  const auto body = [](RankContext& context) {
    const auto consume = [&](PeerSpans) {
      if (context.rank() == 1) throw std::domain_error("boom");
    };
    context.group()->all_gather({}, Dtype::kFloat32, consume, {.label = "first"})->wait();
    context.group()->barrier()->wait();
  };
  try {
    launch_mpi(3, body, quiet());
    ADD_FAILURE() << "no exception";
  } catch (const std::domain_error& error) {
    EXPECT_EQ(own_rank(), 1);
    EXPECT_STREQ(error.what(), "boom");
  } catch (const CollectiveError& error) {
    EXPECT_NE(own_rank(), 1);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("boom"));
  }
}

// The others are in a barrier that the rank does not come to, long before its deadline.
TEST(LaunchMpi, NamesARankThatHasLeftAtOnce) {
  const auto body = [](RankContext& context) {
    if (context.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      return;
    }
    context.group()->barrier()->wait();
  };
  const auto message =
      error_message<CollectiveError>([&] { launch_mpi(3, body, quiet(std::chrono::hours(1))); });
  EXPECT_THAT(message, ::testing::HasSubstr("rank 1 has left; waiting: "));
}

TEST(LaunchMpi, ExcusesARankForTheCallsThatItIsExcusedFrom) {
  const auto body = [](RankContext& context) {
    const auto come_late = [&](int ms) {
      if (context.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(ms));
    };
    {
      const SlowStorage slow("reading");
      come_late(1'500);
    }
    context.group()->barrier({.label = "excused"})->wait();
    come_late(1'300);
    context.group()->barrier({.label = "late"})->wait();
  };
  const auto message = error_message<CollectiveError>(
      [&] { launch_mpi(2, body, quiet(std::chrono::milliseconds(700))); });
  EXPECT_THAT(message,
              ::testing::HasSubstr("barrier [group world, sequence 1, late]: not joined within 700 "
                                   "ms by rank 1; waiting: rank 0"));
}

TEST(LaunchMpi, SaysWhichRankDoesNotReturnAfterAFailure) {
  const auto body = [](RankContext& context) {
    if (context.rank() == 1) throw ValueError("boom");
    try {
      context.group()->barrier()->wait();
    } catch (const CollectiveError&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(600));
      throw;
    }
  };
  ::testing::internal::CaptureStderr();
  EXPECT_THROW(launch_mpi(2, body, quiet(std::chrono::milliseconds(200))), Error);
  const auto said = ::testing::internal::GetCapturedStderr();
  if (own_rank() == 0) {
    EXPECT_THAT(said,
                ::testing::HasSubstr(
                    "launch_mpi: rank 0 has not returned 200 ms after a failure, launch_mpi() "
                    "waits; the failure: rank 1 failed: boom"));
  } else {
    EXPECT_EQ(said, "");
  }
}

TEST(LaunchMpi, NeedsASubgroupToBeMadeWhileNothingIsPending) {
  launch_mpi(2, [](RankContext& context) {
    auto& group = *context.group();
    const int both[] = {0, 1};
    const auto pending = group.barrier({.queue = CollectiveQueue::kReduce, .label = "of a step"});
    const auto message = error_message<CollectiveError>([&] {
      // The barrier may have ended, but not what the other rank sends after its own attempt.
      std::vector<std::byte> kept(4);
      const auto waits = group.recv(kept, 1 - context.rank(), 3, Dtype::kFloat32);
      try {
        group.subgroup(both, "late");
      } catch (...) {
        group.barrier({.label = "both have tried"})->wait();
        const auto sent = group.send(kept, 1 - context.rank(), 3, Dtype::kFloat32);
        waits->wait();
        sent->wait();
        throw;
      }
    });
    EXPECT_THAT(message, ::testing::MatchesRegex(
                             "subgroup late: must be made while no call of group world is pending, "
                             "got [12], the oldest (barrier|recv) .*"));
    pending->wait();
    EXPECT_EQ(group.subgroup(both, "in time")->size(), 2);
  });
}

TEST(LaunchMpi, SendsToItselfAndAcrossSubgroups) {
  launch_mpi(4, [](RankContext& context) {
    auto& world = *context.group();
    const int half[] = {context.rank() / 2 * 2, context.rank() / 2 * 2 + 1};
    const auto pair = world.subgroup(half, "pair");
    for (const std::size_t count : {1, 5'000}) {
      std::vector<std::int64_t> values(count), received(count);
      std::iota(values.begin(), values.end(), 100 * context.rank());
      const auto in = std::as_bytes(std::span(values));
      const auto out = std::as_writable_bytes(std::span(received));
      const auto to_itself = world.send(in, context.rank(), 0, Dtype::kInt64);
      world.recv(out, context.rank(), 0, Dtype::kInt64)->wait();
      to_itself->wait();
      EXPECT_EQ(received, values);
      // The same tag in another group is another channel.
      const auto to_peer = pair->send(in, 1 - pair->rank(), 0, Dtype::kInt64);
      pair->recv(out, 1 - pair->rank(), 0, Dtype::kInt64)->wait();
      to_peer->wait();
      EXPECT_EQ(received[0], 100 * half[1 - pair->rank()]);
    }
  });
}

TEST(LaunchMpi, ComparesLabelsOfAnyLength) {
  const std::string path(5'000, 'x');
  launch_mpi(2, [&](RankContext& context) { context.group()->barrier({.label = path})->wait(); });
  const auto errors = test::errors_of(2, [&](RankContext& context) {
    context.group()->barrier({.label = path + std::to_string(context.rank())})->wait();
  });
  EXPECT_THAT(errors, ::testing::Each(::testing::HasSubstr("(5001 characters, checksum ")));
}

TEST(LaunchMpi, RejectsTagsThatMpiCannotCarry) {
  launch_mpi(1, [](RankContext& context) {
    for (const int tag : {1 << 28, (1 << 28) + 1}) {
      EXPECT_EQ(
          error_message<ValueError>([&] { context.group()->send({}, 0, tag, Dtype::kFloat32); }),
          "send: tag must be in [0, 268435456) over MPI, got " + std::to_string(tag));
    }
  });
}

TEST(LaunchMpi, RejectsAWorldThatDoesNotFitTheProcesses) {
  for (const int size : {0, num_processes() + 1}) {
    EXPECT_EQ(error_message<ValueError>([&] { launch_mpi(size, [](RankContext&) {}); }),
              "launch_mpi: world_size must be in [1, " + std::to_string(num_processes()) +
                  "], the processes that mpirun has started, got " + std::to_string(size));
  }
}

TEST(LaunchMpi, RejectsOptionsOutOfTheirRanges) {
  const auto refused = [](const LaunchOptions& options) {
    return error_message<ValueError>([&] { launch_mpi([](RankContext&) {}, options); });
  };
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{100}, (std::size_t{1} << 30) + 64}) {
    LaunchOptions options;
    options.piece_bytes = bytes;
    EXPECT_EQ(refused(options),
              "launch_mpi: piece_bytes must be a multiple of 64 in (0, 1073741824], got " +
                  std::to_string(bytes));
  }
  EXPECT_EQ(refused({.deadline = std::chrono::milliseconds(0)}),
            "launch_mpi: deadline must be in (0, 24 h], got 0 ms");
}

TEST(LaunchMpi, RejectsRanksOfAnotherLaunch) {
  launch_mpi(2, [](RankContext&) {
    EXPECT_EQ(error_message<Error>([] { launch_mpi([](RankContext&) {}); }),
              "launch_mpi: must not be called by a rank of another launch");
  });
}

TEST(LaunchMpi, RejectsProcessesThatPassDifferentOptions) {
  LaunchOptions options;
  if (own_rank() == 3) options.check_nan = true;
  const auto message = error_message<ValueError>([&] { launch_mpi([](RankContext&) {}, options); });
  EXPECT_EQ(
      message,
      "launch_mpi: all ranks must run the same program in the same way; rank 0 has launch of 8 "
      "ranks, deadline 60000 ms, pieces of 4194304 bytes, check_nan 0, rank 3 has launch of 8 "
      "ranks, deadline 60000 ms, pieces of 4194304 bytes, check_nan 1");
}

}  // namespace
}  // namespace moegrad::launch_mpi_test
