// SPDX-License-Identifier: Apache-2.0
// What ProcessGroup and Work do for every backend.
#include "framework/distributed/process_group.h"

#include <limits>
#include <thread>

#include "framework/distributed/collectives.h"
#include "tests/framework/distributed/collective_testing.h"
#include "tests/framework/distributed/mock_process_group.h"

namespace moegrad::process_group_test {
namespace {

using namespace std::chrono_literals;
using namespace test;
using ::testing::_;
using ::testing::AllOf;
using ::testing::Field;
using ::testing::NiceMock;
using ::testing::StrictMock;

std::span<std::byte> bytes_of(std::vector<float>& values) {
  return std::as_writable_bytes(std::span(values));
}

// Ranks 3, 5, 8 of a world; this one is 5.
const std::vector<int> kRanks = {3, 5, 8};

TEST(ProcessGroup, ChecksArgumentsBeforeABackendSeesThem) {
  StrictMock<MockProcessGroup> group(kRanks, 1);
  std::vector<float> four(4), other(4);
  const auto message = [](const auto& call) { return error_message<ValueError>(call); };
  constexpr auto kF = Dtype::kFloat32;
  const auto odd = bytes_of(four).first(7);
  EXPECT_EQ(message([&] { group.all_gather(odd, kF, [](PeerSpans) {}); }),
            "all_gather: a buffer of float32 needs a multiple of 4 bytes, got 7");
  EXPECT_EQ(message([&] { group.all_gather(bytes_of(four), kF, nullptr); }),
            "all_gather: consume must not be null");
  EXPECT_EQ(message([&] {
              group.all_to_all(ByteParts{bytes_of(four)}, std::vector<std::int64_t>{4, 0, 0},
                               GatherConsumer(), std::vector<std::int64_t>{4, 0, 0}, kF);
            }),
            "all_to_all: consume must not be null");
  const auto consume = [&](std::vector<std::int64_t> sent, std::vector<std::int64_t> received) {
    return message([&] {
      group.all_to_all(
          ByteParts{bytes_of(four)}, sent, [](PeerSpans) {}, received, kF);
    });
  };
  EXPECT_EQ(consume({4, 0}, {4, 0, 0}), "all_to_all: send_counts needs one of 3 ranks each, got 2");
  EXPECT_EQ(consume({4, 0, 0}, {-1, 0, 0}), "all_to_all: recv_counts must not be negative, got -1");
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(consume({4, 0, 0}, {0, kMost, kMost}),
            "all_to_all: recv_counts must be at most 2^63 - 1 bytes together, got "
            "9223372036854775807 float32");
  EXPECT_EQ(consume({4, 0, 0}, {0, kMost / 4, 1}),
            "all_to_all: recv_counts must be at most 2^63 - 1 bytes together, got "
            "2305843009213693952 float32");
  EXPECT_EQ(
      message([&] { group.reduce_scatter({bytes_of(four)}, bytes_of(other), kF, ReduceOp::kSum); }),
      "reduce_scatter: input must hold 3 chunks of 4 elements, got 4");
  EXPECT_EQ(message([&] { group.broadcast(bytes_of(four), 3, kF); }),
            "broadcast: root must be in [0, 3), got 3");
  EXPECT_EQ(message([&] { group.send(bytes_of(four), -1, 0, kF); }),
            "send: to must be in [0, 3), got -1");
  EXPECT_EQ(message([&] { group.recv(bytes_of(four), 8, 0, kF); }),
            "recv: from must be in [0, 3), got 8");
  const auto exchange = [&](std::vector<std::int64_t> sent, std::vector<std::int64_t> received) {
    return message([&] { group.all_to_all(bytes_of(four), sent, bytes_of(other), received, kF); });
  };
  EXPECT_EQ(exchange({1, 3}, {}), "all_to_all: send_counts needs one of 3 ranks each, got 2");
  EXPECT_EQ(exchange({1, -1, 4}, {}), "all_to_all: send_counts must not be negative, got -1");
  EXPECT_EQ(exchange({1, 1, 2}, {1, 1, 1}),
            "all_to_all: recv_counts must add up to the buffer's 4 elements, got 3");
  EXPECT_EQ(exchange({kMost, kMost, 6}, {}),
            "all_to_all: send_counts must add up to the buffer's 4 elements, got "
            "9223372036854775807");
  for (const auto deadline : {0ms, -5ms, 86'400'001ms}) {
    EXPECT_EQ(
        message([&] { group.barrier({.deadline = deadline}); }),
        "barrier: deadline must be in (0, 24 h], got " + std::to_string(deadline.count()) + " ms");
  }
  const int outside[] = {1, 3};
  EXPECT_EQ(message([&] { group.subgroup(outside, "bad"); }),
            "subgroup: ranks must be in [0, 3), got 3");
}

TEST(ProcessGroup, SumsNumbersAlone) {
  StrictMock<MockProcessGroup> group(kRanks, 1);
  std::vector<float> values(3);
  const auto bytes = bytes_of(values);
  EXPECT_EQ(
      error_message<DtypeError>([&] { group.all_reduce(bytes, Dtype::kBool, ReduceOp::kSum, {}); }),
      "all_reduce: needs float32, float64, bfloat16, int64 or int32, got bool");
  EXPECT_EQ(
      error_message<DtypeError>([&] { group.all_reduce(bytes, Dtype::kInt8, ReduceOp::kMax, {}); }),
      "all_reduce: needs float32, float64, bfloat16, int64 or int32, got int8");
  EXPECT_EQ(error_message<DtypeError>([&] {
              group.reduce_scatter({bytes}, bytes.first(4), Dtype::kBool, ReduceOp::kMax, {});
            }),
            "reduce_scatter: needs float32, float64, bfloat16, int64 or int32, got bool");
}

TEST(ProcessGroup, NumbersTheCallsOfEachQueueAndOfEachMessage) {
  NiceMock<MockProcessGroup> group(kRanks, 1);
  std::vector<std::string> described;
  ON_CALL(group, issue(_)).WillByDefault([&](const CollectiveCall& call) {
    described.push_back(describe(call));
    return nullptr;
  });
  std::vector<float> four(4);
  group.barrier();
  group.barrier({.queue = CollectiveQueue::kGather, .label = "first"});
  group.barrier();
  group.send(bytes_of(four), 2, 7, Dtype::kFloat32, {.queue = CollectiveQueue::kReduce});
  group.send(bytes_of(four), 2, 7, Dtype::kFloat32);
  group.send(bytes_of(four), 2, 7, Dtype::kFloat32);
  group.recv(bytes_of(four), 2, 7, Dtype::kFloat32);
  EXPECT_THAT(described, ::testing::ElementsAre(
                             "barrier [group mock, sequence 0]",
                             "barrier [group mock, queue gather, sequence 0, first]",
                             "barrier [group mock, sequence 1]",
                             "send [group mock, rank 5 to 8, tag 7, queue reduce, sequence 0]",
                             "send [group mock, rank 5 to 8, tag 7, sequence 0]",
                             "send [group mock, rank 5 to 8, tag 7, sequence 1]",
                             "recv [group mock, rank 8 to 5, tag 7, sequence 0]"));
}

TEST(ProcessGroup, TellsABackendWhatIsAskedFor) {
  NiceMock<MockProcessGroup> group(kRanks, 1);
  std::vector<float> twelve(12), four(4);
  EXPECT_CALL(group, issue(AllOf(Field(&CollectiveCall::op, CollectiveOp::kReduceScatter),
                                 Field(&CollectiveCall::count, 12),
                                 Field(&CollectiveCall::reduce, ReduceOp::kMax),
                                 Field(&CollectiveCall::round, 9),
                                 Field(&CollectiveCall::deadline, std::optional(30ms)),
                                 Field(&CollectiveCall::fault, ""))));
  group.reduce_scatter({bytes_of(twelve).first(16), bytes_of(twelve).subspan(16)}, bytes_of(four),
                       Dtype::kFloat32, ReduceOp::kMax, {.round = 9, .deadline = 30ms});
}

TEST(Work, TellsWhenItRanAndThatNothingWentWrong) {
  launch(2, [](RankContext& context) {
    auto& group = *context.group();
    std::vector<float> values(4);
    const auto before = SpanClock::now();
    if (context.rank() == 1) group.recv(bytes_of(values), 0, 0, Dtype::kFloat32)->wait();
    const auto first = group.all_reduce(bytes_of(values), Dtype::kFloat32, ReduceOp::kSum);
    if (context.rank() == 0) {
      EXPECT_EQ(first->error(), nullptr);
      EXPECT_FALSE(first->timing().has_value());  // rank 1 waits for this message
      std::vector<float> message(4);
      group.send(bytes_of(message), 1, 0, Dtype::kFloat32)->wait();
    }
    first->wait();
    EXPECT_EQ(first->error(), nullptr);
    const auto timing = first->timing();
    ASSERT_TRUE(timing.has_value());
    EXPECT_LE(before, timing->met);
    EXPECT_LE(timing->met, timing->ended);
    EXPECT_LE(timing->ended, SpanClock::now());
    EXPECT_EQ(timing->wire_bytes, 16);
  });
}

TEST(Work, HasTheErrorThatWaitThrows) {
  EXPECT_THROW(launch(2,
                      [](RankContext& context) {
                        const auto work = context.group()->barrier(
                            {.label = context.rank() == 0 ? "this" : "that"});
                        while (!work->test()) std::this_thread::yield();
                        EXPECT_FALSE(work->timing().has_value());
                        const auto error = work->error();
                        ASSERT_NE(error, nullptr);
                        EXPECT_THROW(std::rethrow_exception(error), CollectiveError);
                        work->wait();
                      }),
               CollectiveError);
}

TEST(Work, FailsAfterADeadlineOfItsOwn) {
  test::RankLatch failed(1);
  const auto message = error_message<CollectiveError>([&] {
    launch(2, [&](RankContext& context) {
      if (context.rank() == 1) return failed.wait();
      try {
        context.group()->barrier({.deadline = 40ms})->wait();
      } catch (const CollectiveError&) {
        failed.count_down();
        throw;
      }
    });
  });
  EXPECT_EQ(
      message,
      "barrier [group world, sequence 0]: not joined within 40 ms by rank 1; waiting: rank 0");
}

// The longest deadline of those who wait counts, whoever of them came first.
TEST(Work, WaitsAsLongAsTheMostPatientRank) {
  for (const int patient : {0, 1}) {
    launch(3,
           [&](RankContext& context) {
             if (context.rank() == 1) std::this_thread::sleep_for(20ms);
             if (context.rank() == 2) std::this_thread::sleep_for(1500ms);
             context.group()
                 ->barrier({.deadline = context.rank() == patient ? 60'000ms : 500ms})
                 ->wait();
           },
           {.deadline = 700ms});
  }
}

TEST(Work, MayHaveALongerDeadlineThanTheLaunch) {
  launch(2,
         [](RankContext& context) {
           if (context.rank() == 1) std::this_thread::sleep_for(300ms);
           context.group()->barrier({.deadline = 60s})->wait();
         },
         {.deadline = 50ms});
}

}  // namespace
}  // namespace moegrad::process_group_test
