// SPDX-License-Identifier: Apache-2.0
// One rank of four does something wrong in its second collective: all others end in time with an
// error that names rank, operation, group and sequence number, and one report is made.
#include <atomic>
#include <chrono>
#include <limits>
#include <thread>

#include "framework/distributed/collectives.h"
#include "tests/framework/distributed/collective_testing.h"

namespace moegrad::collective_fault_test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr int kRanks = 4;
constexpr int kFaulty = 2;
constexpr auto kDeadline = 500ms;
constexpr auto kGrace = 2s;
const CollectiveOptions kLayer{.label = "layers.1"};

void reduce(ProcessGroup& group) {
  std::vector<float> values(4);
  all_reduce(group, std::span(values), ReduceOp::kSum, kLayer);
}

void gather(ProcessGroup& group) {
  std::vector<float> values(4), all(16);
  all_gather(group, values, std::span(all), kLayer);
}

const std::vector<std::int64_t> kOneEach(kRanks, 1);

void exchange(ProcessGroup& group) {
  std::vector<float> values(4), received(4);
  group
      .all_to_all(std::as_bytes(std::span(values)), kOneEach,
                  std::as_writable_bytes(std::span(received)), kOneEach, Dtype::kFloat32, kLayer)
      ->wait();
}

/// What the faulty rank runs instead; `others_ended` says that all others have seen their errors.
using Faulty = std::function<void(ProcessGroup& group, test::RankLatch& others_ended)>;

struct Fault {
  std::string name;
  Faulty faulty;
  std::string cause;  // in the others' errors
  std::string op = "all_reduce";
  std::function<void(ProcessGroup&)> others = reduce;
};

void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

class CollectiveFault : public ::testing::TestWithParam<Fault> {};

TEST_P(CollectiveFault, EndsAllOtherRanksInTimeAndNamesWhere) {
  const Fault& fault = GetParam();
  std::vector<std::string> errors(kRanks), reports;
  test::RankLatch others_ended(kRanks - 1);
  const auto body = [&](RankContext& context) {
    auto& group = *context.group();
    group.barrier()->wait();
    if (context.rank() == kFaulty) return fault.faulty(group, others_ended);
    const auto start = std::chrono::steady_clock::now();
    try {
      fault.others(group);
    } catch (const CollectiveError& error) {
      errors[static_cast<std::size_t>(context.rank())] = error.what();
      EXPECT_LT(std::chrono::steady_clock::now() - start, kDeadline + kGrace);
    }
    others_ended.count_down();
  };
  try {
    launch(kRanks, body,
           {.deadline = kDeadline, .check_nan = true, .on_failure = [&](const std::string& report) {
              reports.push_back(report);
            }});
  } catch (const Error&) {  // the faulty rank's
  }
  errors = test::of_all_ranks(errors);
  for (const std::size_t rank : {0, 1, 3}) {
    EXPECT_THAT(errors[rank],
                ::testing::StartsWith(fault.op + " [group world, sequence 1, layers.1]: "));
    EXPECT_THAT(errors[rank], HasSubstr("rank 2"));
    EXPECT_THAT(errors[rank], HasSubstr(fault.cause));
  }
  const auto started = mpi_environment();
  if (started && started->rank >= kRanks) return;  // a process without a rank
  ASSERT_EQ(reports.size(), 1U);
  EXPECT_THAT(reports[0], HasSubstr(fault.cause));
  const bool has_all = !started || started->rank == 0;
  EXPECT_THAT(reports[0], HasSubstr(has_all ? "\nlast operations of each rank:\n"
                                            : "\nlast operations of rank "));
  EXPECT_THAT(reports[0], ::testing::ContainsRegex("done +group world.* +sequence 0  barrier"));
}

template <class T>
Faulty reduces(std::vector<T> values, ReduceOp op, const CollectiveOptions& options = kLayer) {
  return [=](ProcessGroup& group, test::RankLatch&) mutable {
    all_reduce(group, std::span(values), op, options);
  };
}

Faulty gathers(const std::function<void(test::RankLatch& others_ended)>& consume) {
  return [=](ProcessGroup& group, test::RankLatch& others_ended) {
    std::vector<float> values(4);
    group
        .all_gather(
            std::as_bytes(std::span(values)), Dtype::kFloat32,
            [&](PeerSpans) { consume(others_ended); }, kLayer)
        ->wait();
  };
}

void exchanges_and_throws(ProcessGroup& group, test::RankLatch& /*others_ended*/) {
  std::vector<float> values(4);
  const auto fail = [](PeerSpans) { throw ShapeError("no room"); };
  group
      .all_to_all({std::as_bytes(std::span(values))}, kOneEach, fail, kOneEach, Dtype::kFloat32,
                  kLayer)
      ->wait();
}

const auto kNaN = std::numeric_limits<float>::quiet_NaN();

INSTANTIATE_TEST_SUITE_P(
    Faults, CollectiveFault,
    ::testing::Values(
        Fault{"WrongCount", reduces(std::vector<float>(5), ReduceOp::kSum),
              "all_reduce(sum) of 5 float32"},
        Fault{"WrongDtype", reduces(std::vector<double>(4), ReduceOp::kSum),
              "all_reduce(sum) of 4 float64"},
        Fault{"WrongReduction", reduces(std::vector<float>(4), ReduceOp::kMax),
              "all_reduce(max) of 4 float32"},
        Fault{"WrongOp", [](ProcessGroup& group, test::RankLatch&) { gather(group); },
              "all_gather of 4 float32"},
        Fault{"WrongOrder", reduces(std::vector<float>(4), ReduceOp::kSum, {.label = "layers.2"}),
              "all_reduce(sum) of 4 float32 (layers.2)"},
        // Either queue may be the first to fail.
        Fault{"WrongQueue",
              reduces(std::vector<float>(4), ReduceOp::kSum, {.queue = CollectiveQueue::kReduce}),
              "not joined within 500 ms by rank"},
        Fault{"Leaves", [](ProcessGroup&, test::RankLatch&) {}, "rank 2 has left"},
        Fault{"Throws", [](ProcessGroup&, test::RankLatch&) { throw ValueError("boom"); },
              "rank 2 failed: boom"},
        Fault{"NeverComes",
              [](ProcessGroup&, test::RankLatch& others_ended) { others_ended.wait(); },
              "not joined within 500 ms by rank 2"},
        Fault{"NaN", reduces(std::vector<float>{0, kNaN, 0, 0}, ReduceOp::kSum),
              "rank 2 has NaN at element 1 of 4 float32"},
        Fault{"ThrowsInAConsumer", gathers([](test::RankLatch&) { throw ShapeError("no room"); }),
              "rank 2 failed: no room", "all_gather", gather},
        Fault{"ThrowsInAConsumerOfAllToAll", exchanges_and_throws, "rank 2 failed: no room",
              "all_to_all", exchange},
        Fault{"IsStuckInAConsumer",
              gathers([](test::RankLatch& others_ended) { others_ended.wait(); }),
              "not executed within 500 ms by rank 2; waiting: ranks 0, 1, 3", "all_gather",
              gather}),
    [](const auto& fault) { return fault.param.name; });

TEST(StuckConsumer, HoldsUpNoOtherQueueForLongerThanTheDeadline) {
  // Rank 1's thread never comes to execute the all_reduce that everybody has joined. It is too long
  // for each rank to sum it at once.
  test::RankLatch other_ended(1);
  const auto errors = test::errors_of(
      2,
      [&](RankContext& context) {
        const auto stuck = context.group()->all_gather({}, Dtype::kFloat32,
                                                       [&, rank = context.rank()](PeerSpans) {
                                                         if (rank == 1) other_ended.wait();
                                                       },
                                                       {.queue = CollectiveQueue::kReduce});
        try {
          std::vector<float> values(4'000);
          all_reduce(*context.group(), std::span(values), ReduceOp::kSum, kLayer);
        } catch (const CollectiveError&) {
          if (context.rank() == 0) {
            EXPECT_THROW(stuck->wait(), CollectiveError);
            other_ended.count_down();
          }
          throw;
        }
      },
      500ms);
  for (const auto& error : errors) {
    EXPECT_THAT(error, ::testing::StartsWith("all_reduce [group world, sequence 0, layers.1]: "));
    EXPECT_THAT(error, HasSubstr("not executed within 500 ms by rank 1; waiting: rank 0"));
  }
}

// It reads the bytes of the other rank, whose call must not end before.
TEST(StuckConsumer, OfAnAllToAllIsWaitedForPastTheDeadline) {
  std::atomic<bool> returned = false;
  launch(2,
         [&](RankContext& context) {
           const std::vector<std::int64_t> none(2);
           const auto consume = [&, rank = context.rank()](PeerSpans) {
             if (rank == 0) return;
             std::this_thread::sleep_for(600ms);
             returned = true;
           };
           const auto work =
               context.group()->all_to_all(ByteParts(), none, consume, none, Dtype::kFloat32);
           EXPECT_THAT(test::error_message<CollectiveError>([&] { work->wait(); }),
                       HasSubstr("not executed within 100 ms by rank 1; waiting: rank 0"));
           EXPECT_TRUE(returned);
         },
         {.deadline = 100ms, .on_failure = [](const std::string&) {}});
}

TEST(StuckConsumer, EndsItsOwnCallWhenItReturns) {
  test::RankLatch other_ended(1);
  bool returned = false;
  launch(2,
         [&](RankContext& context) {
           const auto work = context.group()->all_gather(
               {}, Dtype::kFloat32, [&, rank = context.rank()](PeerSpans) {
                 if (rank == 0) return;
                 other_ended.wait();
                 std::this_thread::sleep_for(20ms);  // for rank 1 to make the mistake
                 returned = true;
               });
           EXPECT_THROW(work->wait(), CollectiveError);
           if (context.rank() == 0) other_ended.count_down();
           if (context.rank() == 1) {
             EXPECT_TRUE(returned);
           }
         },
         {.deadline = 500ms, .on_failure = [](const std::string&) {}});
}

}  // namespace
}  // namespace moegrad::collective_fault_test
