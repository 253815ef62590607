// SPDX-License-Identifier: Apache-2.0
// The report of a failure: what each rank did last.
#include "framework/distributed/collective_history.h"

#include <latch>
#include <set>

#include "framework/distributed/collectives.h"
#include "tests/framework/distributed/collective_testing.h"

namespace moegrad::collective_history_test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::Not;

// The reports of a launch, whatever it throws.
std::vector<std::string> reports_of(int world_size, const std::function<void(RankContext&)>& body,
                                    std::chrono::milliseconds deadline = 60'000ms) {
  std::vector<std::string> reports;
  const auto keep = [&](const std::string& report) { reports.push_back(report); };
  EXPECT_THROW(launch(world_size, body, {.deadline = deadline, .on_failure = keep}), Error);
  return reports;
}

TEST(History, StandsInColumnsWithEqualRanksTogether) {
  const HistoryLine barrier{"done", "group world", "sequence 9", "barrier", ""};
  const HistoryLine gather{"joined", "group pair, queue q", "sequence 10",
                           "all_gather of 4 float32", "layers.1"};
  EXPECT_EQ(
      format_history({{barrier, gather}, {barrier}, {barrier, gather}, {}, {barrier, gather}}),
      "ranks 0, 2, 4\n"
      "  done    group world          sequence 9   barrier\n"
      "  joined  group pair, queue q  sequence 10  all_gather of 4 float32  layers.1\n"
      "rank 1\n"
      "  done    group world          sequence 9   barrier\n"
      "rank 3\n"
      "  no operation");
}

TEST(History, NamesRunsOfRanksByTheirEnds) {
  const auto names = [](std::vector<int> ranks) { return name_ranks(ranks); };
  EXPECT_EQ(names({3}), "rank 3");
  EXPECT_EQ(names({3, 4}), "ranks 3, 4");
  EXPECT_EQ(names({0, 1, 2, 5, 7, 8, 9, 10}), "ranks 0-2, 5, 7-10");
}

TEST(History, ShowsHowFarEachOperationHasCome) {
  std::latch joined(2);
  const auto reports = reports_of(3, [&](RankContext& context) {
    auto& group = *context.group();
    std::vector<float> values(4);
    const auto bytes = std::as_writable_bytes(std::span(values));
    group.barrier()->wait();
    if (context.rank() == 2) {
      joined.wait();
      throw ValueError("boom");
    }
    const auto first = group.all_reduce(bytes, Dtype::kFloat32, ReduceOp::kSum,
                                        {.queue = CollectiveQueue::kReduce, .label = "layers.1"});
    const auto second =
        group.broadcast(bytes, 1, Dtype::kFloat32, {.queue = CollectiveQueue::kReduce});
    const auto sent =
        context.rank() == 0 ? group.send(bytes, 2, 7, Dtype::kFloat32) : group.barrier();
    joined.count_down();
    first->wait();
  });
  EXPECT_THAT(
      reports,
      ::testing::ElementsAre(
          "rank 2 failed: boom\n"
          "last operations of each rank:\n"
          "rank 0\n"
          "  done    group world                      sequence 0  barrier\n"
          "  joined  group world, queue reduce        sequence 0  all_reduce(sum) of 4 float32  "
          "  layers.1\n"
          "  issued  group world, queue reduce        sequence 1  broadcast(root 1) of 4 float32\n"
          "  joined  group world, rank 0 to 2, tag 7  sequence 0  send of 4 float32\n"
          "rank 1\n"
          "  done    group world                      sequence 0  barrier\n"
          "  joined  group world, queue reduce        sequence 0  all_reduce(sum) of 4 float32  "
          "  layers.1\n"
          "  issued  group world, queue reduce        sequence 1  broadcast(root 1) of 4 float32\n"
          "  joined  group world                      sequence 1  barrier\n"
          "rank 2\n"
          "  done    group world                      sequence 0  barrier"));
}

TEST(History, TellsWhoIsInsideAConsumer) {
  std::latch ended(1);
  const auto reports = reports_of(
      2,
      [&](RankContext& context) {
        const auto consume = [&, rank = context.rank()](PeerSpans) {
          if (rank == 1) ended.wait();
        };
        const auto work = context.group()->all_gather({}, Dtype::kFloat32, consume);
        try {
          work->wait();
        } catch (const CollectiveError&) {
          if (context.rank() == 0) ended.count_down();
          throw;
        }
      },
      500ms);
  EXPECT_THAT(reports, ::testing::ElementsAre(
                           "all_gather [group world, sequence 0]: not executed within 500 ms by "
                           "rank 1; waiting: rank 0\n"
                           "last operations of each rank:\n"
                           "rank 0\n"
                           "  executed  group world  sequence 0  all_gather of 0 float32\n"
                           "rank 1\n"
                           "  running   group world  sequence 0  all_gather of 0 float32"));
}

TEST(History, TellsWhatAnExceptionTookAway) {
  std::latch given_up(1);
  const auto reports = reports_of(2, [&](RankContext& context) {
    if (context.rank() == 0) {
      try {
        const auto work = context.group()->barrier();
        throw ValueError("caught");
      } catch (const ValueError&) {
      }
      given_up.count_down();
    }
    given_up.wait();
    context.group()->barrier()->wait();
  });
  ASSERT_EQ(reports.size(), 1U);
  EXPECT_THAT(reports[0], HasSubstr("\n  given up  group world  sequence 0  barrier"));
}

TEST(History, AllocatesNothingOnceItIsFull) {
  CollectiveHistory history;
  const auto buffers = [&] {
    std::set<const char*> found;
    for (const auto& entry : history.entries()) {
      found.insert(entry.request.label.data());
      found.insert(entry.request.group.data());
    }
    return found;
  };
  const auto add = [&](int times) {
    for (int i = 0; i < times; ++i) {
      history.add({.label = "a label that needs bytes of its own, number " + std::to_string(i % 10),
                   .group = "a group that needs bytes of its own"});
    }
  };
  add(CollectiveHistory::kLength);
  const auto first = buffers();
  EXPECT_EQ(first.size(), 2 * CollectiveHistory::kLength);
  add(70);
  EXPECT_EQ(buffers(), first);
}

TEST(History, HoldsTheLastOperationsAlone) {
  constexpr int kOperations = 50;
  constexpr int kFirst = kOperations - static_cast<int>(CollectiveHistory::kLength);
  const auto reports = reports_of(2, [&](RankContext& context) {
    for (int i = 0; i < kOperations; ++i) context.group()->barrier()->wait();
    if (context.rank() == 1) throw ValueError("boom");
    context.group()->barrier({.queue = CollectiveQueue::kReduce})->wait();
  });
  ASSERT_EQ(reports.size(), 1U);
  EXPECT_THAT(reports[0], HasSubstr(" sequence " + std::to_string(kFirst) + " "));
  EXPECT_THAT(reports[0], Not(HasSubstr(" sequence " + std::to_string(kFirst - 1) + " ")));
  EXPECT_THAT(reports[0], HasSubstr(" sequence " + std::to_string(kOperations - 1) + " "));
}

TEST(History, IsLoggedByDefaultAsAnErrorButNotWhereARankThrew) {
  const auto printed = [](const std::function<void(RankContext&)>& body) {
    ::testing::internal::CaptureStderr();
    EXPECT_THROW(launch(2, body), Error);
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(printed([](RankContext& context) {
                if (context.rank() == 0) context.group()->barrier()->wait();
              }),
              ::testing::ContainsRegex(" error .rank 0. barrier .group world, sequence 0.: rank 1 "
                                       "has left; waiting: rank 0\nlast operations of each "
                                       "rank:\nrank 0\n  joined  group world  sequence 0  "
                                       "barrier\nrank 1\n  no operation\n"));
  EXPECT_EQ(printed([](RankContext& context) {
              if (context.rank() == 1) throw ValueError("boom");
              context.group()->barrier()->wait();
            }),
            "");
}

TEST(History, IsReportedAlsoWhereNobodyWaits) {
  std::vector<std::string> reports;
  launch(2,
         [](RankContext& context) {
           if (context.rank() == 0) context.group()->barrier();  // dropped: its error is nobody's
         },
         {.on_failure = [&](const std::string& report) { reports.push_back(report); }});
  ASSERT_EQ(reports.size(), 1U);
  EXPECT_THAT(reports[0],
              ::testing::StartsWith("barrier [group world, sequence 0]: rank 1 has left"));
}

}  // namespace
}  // namespace moegrad::collective_history_test
