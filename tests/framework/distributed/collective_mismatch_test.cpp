// SPDX-License-Identifier: Apache-2.0
// Calls that do not fit together, or are wrong by themselves.
#include <utility>

#include "framework/distributed/collectives.h"
#include "tests/framework/distributed/collective_testing.h"

namespace moegrad::collective_mismatch_test {
namespace {

using namespace test;
using ::testing::Each;
using ::testing::ElementsAre;

const auto kIgnore = [](PeerSpans) {};
const CollectiveOptions kLayer{.label = "layers.1"};

WorkPtr gather(ProcessGroup& group, std::span<const float> input,
               const CollectiveOptions& options) {
  return group.all_gather(std::as_bytes(input), Dtype::kFloat32, kIgnore, options);
}

TEST(Mismatch, OfOperationsNamesBoth) {
  const auto errors = errors_of(2, [](RankContext& context) {
    auto& group = *context.group();
    for (int i = 0; i < 3; ++i) group.barrier()->wait();
    std::vector<float> input(128), output(64);
    if (context.rank() == 0) gather(group, std::span(input).first(64), kLayer)->wait();
    reduce_scatter(group, input, std::span(output), ReduceOp::kSum, kLayer);
  });
  const std::string cause =
      " [group world, sequence 3, layers.1]: rank 0 called all_gather of 64 float32, rank 1 "
      "reduce_scatter(sum) of 128 float32";
  EXPECT_THAT(errors, ElementsAre("all_gather" + cause, "reduce_scatter" + cause));
}

TEST(Mismatch, OfCountsDtypesRootsAndReductionsNamesBoth) {
  std::vector<double> wide(8);
  std::vector<float> values(8);
  const auto bytes = std::as_writable_bytes(std::span(values));
  using Body = std::function<WorkPtr(ProcessGroup&)>;
  const auto mismatch = [](const Body& on_rank_0, const Body& on_rank_1) {
    const auto errors = errors_of(2, [&](RankContext& context) {
      (context.rank() == 0 ? on_rank_0 : on_rank_1)(*context.group())->wait();
    });
    EXPECT_EQ(errors[0], errors[1]);
    return errors[0];
  };
  const auto all_reduce = [&](std::size_t size, Dtype dtype, ReduceOp op) -> Body {
    return [=](ProcessGroup& group) { return group.all_reduce(bytes.first(size), dtype, op); };
  };
  const std::string where = "all_reduce [group world, sequence 0]: ";
  EXPECT_EQ(mismatch(all_reduce(16, Dtype::kFloat32, ReduceOp::kSum),
                     all_reduce(20, Dtype::kFloat32, ReduceOp::kSum)),
            where +
                "rank 0 called all_reduce(sum) of 4 float32, rank 1 all_reduce(sum) of 5 "
                "float32");
  EXPECT_EQ(mismatch(all_reduce(16, Dtype::kFloat32, ReduceOp::kSum),
                     all_reduce(8, Dtype::kBFloat16, ReduceOp::kSum)),
            where +
                "rank 0 called all_reduce(sum) of 4 float32, rank 1 all_reduce(sum) of 4 "
                "bfloat16");
  EXPECT_EQ(mismatch(all_reduce(16, Dtype::kFloat32, ReduceOp::kSum),
                     all_reduce(16, Dtype::kFloat32, ReduceOp::kMax)),
            where +
                "rank 0 called all_reduce(sum) of 4 float32, rank 1 all_reduce(max) of 4 "
                "float32");
  const auto broadcast = [&](int root) -> Body {
    return [=](ProcessGroup& group) { return group.broadcast(bytes, root, Dtype::kFloat32); };
  };
  EXPECT_EQ(mismatch(broadcast(0), broadcast(1)),
            "broadcast [group world, sequence 0]: rank 0 called broadcast(root 0) of 8 float32, "
            "rank 1 broadcast(root 1) of 8 float32");
}

TEST(Mismatch, OfOrderShowsInTheLabels) {
  const auto errors = errors_of(2, [](RankContext& context) {
    std::vector<float> input(4);
    const CollectiveOptions a{.label = "a"}, b{.label = "b"};
    const bool first = context.rank() == 0;
    const auto one = gather(*context.group(), input, first ? a : b);
    gather(*context.group(), input, first ? b : a)->wait();
  });
  EXPECT_THAT(errors, Each(::testing::HasSubstr("rank 0 called all_gather of 4 float32 (a), rank 1 "
                                                "all_gather of 4 float32 (b)")));
}

TEST(Mismatch, OfAllToAllCountsNamesThePair) {
  const auto errors = errors_of(2, [](RankContext& context) {
    std::vector<float> input(4), output(4);
    const bool first = context.rank() == 0;
    const std::vector<std::int64_t> send = {first ? 1 : 3, first ? 3 : 1};
    const std::vector<std::int64_t> recv = {first ? 1 : 2, first ? 3 : 1};
    context.group()
        ->all_to_all(std::as_bytes(std::span(input)), send,
                     std::as_writable_bytes(std::span(output)).first(first ? 16 : 12), recv,
                     Dtype::kFloat32)
        ->wait();
  });
  EXPECT_THAT(errors,
              Each("all_to_all [group world, sequence 0]: rank 0 sends 3 float32 to rank 1, "
                   "which expects 2"));
}

TEST(Mismatch, OfAllToAllCountsIsFoundInEitherDirection) {
  const auto errors = errors_of(2, [](RankContext& context) {
    std::vector<float> input(4), output(4);
    const std::vector<std::int64_t> send = {context.rank() == 0 ? 1 : 3, 1};
    const std::vector<std::int64_t> recv = {1, 1};
    context.group()
        ->all_to_all(std::as_bytes(std::span(input)).first(context.rank() == 0 ? 8 : 16), send,
                     std::as_writable_bytes(std::span(output)).first(8), recv, Dtype::kFloat32)
        ->wait();
  });
  EXPECT_THAT(errors,
              Each("all_to_all [group world, sequence 0]: rank 1 sends 3 float32 to rank 0, "
                   "which expects 1"));
}

TEST(Mismatch, OfSendAndRecvNamesTheTag) {
  const auto errors = errors_of(2, [](RankContext& context) {
    std::vector<float> values(4);
    const auto bytes = std::as_writable_bytes(std::span(values));
    if (context.rank() == 0) {
      context.group()->send(bytes, 1, 7, Dtype::kFloat32)->wait();
    } else {
      context.group()->recv(bytes.first(12), 0, 7, Dtype::kFloat32)->wait();
    }
  });
  const std::string cause =
      " [group world, rank 0 to 1, tag 7, sequence 0]: rank 0 called send of 4 float32, rank 1 "
      "recv of 3 "
      "float32";
  EXPECT_THAT(errors, ElementsAre("send" + cause, "recv" + cause));
}

TEST(Mismatch, OfTheNameOrTheRanksOfANewGroupIsFoundAtOnce) {
  const int ranks[] = {0, 1, 2};
  for (const bool other_ranks : {false, true}) {
    const auto errors = errors_of(3, [&](RankContext& context) {
      if (context.rank() == 2 && !other_ranks) return;
      const bool three = other_ranks && context.rank() > 0;
      context.group()->subgroup(std::span(ranks).first(three ? 3 : 2),
                                context.rank() == 0 || other_ranks ? "a" : "b");
    });
    const std::string cause =
        other_ranks ? "rank 0 called barrier (a: subgroup of ranks {0, 1}), rank 1 barrier (a: "
                      "subgroup of ranks {0, 1, 2})"
                    : "rank 0 called barrier (a: subgroup of ranks {0, 1}), rank 1 barrier (b: "
                      "subgroup of ranks {0, 1})";
    EXPECT_THAT(errors[0], ::testing::HasSubstr(cause));
    EXPECT_THAT(errors[1], ::testing::HasSubstr(cause));
  }
}

TEST(Arguments, ThatOverlapAreRefusedButForWorkInPlace) {
  launch(2, [](RankContext& context) {
    auto& group = *context.group();
    const auto own = static_cast<std::size_t>(context.rank());
    std::vector<float> values(8, static_cast<float>(own + 1));
    const auto all = std::as_writable_bytes(std::span(values));
    const auto half = all.subspan(16 * own, 16), other = all.subspan(16 * (1 - own), 16);
    const std::string unless =
        "input and output must not overlap, unless the shorter one is this rank's place in the "
        "other";
    for (const auto input : {other, all.subspan(4, 16)}) {
      EXPECT_EQ(error_message<ValueError>([&] { group.all_gather(input, all, Dtype::kFloat32); }),
                "all_gather: " + unless);
      EXPECT_EQ(error_message<ValueError>(
                    [&] { group.reduce_scatter({all}, input, Dtype::kFloat32, ReduceOp::kSum); }),
                "reduce_scatter: " + unless);
    }
    EXPECT_EQ(error_message<ValueError>([&] {
                group.reduce_scatter({all.first(16), all.subspan(16)}, half, Dtype::kFloat32,
                                     ReduceOp::kSum);
              }),
              "reduce_scatter: " + unless);
    group.all_gather(half, all, Dtype::kFloat32)->wait();
    EXPECT_THAT(values, ElementsAre(1, 1, 1, 1, 2, 2, 2, 2));
    group.reduce_scatter({all}, half, Dtype::kFloat32, ReduceOp::kSum)->wait();
    EXPECT_EQ(values[4 * own], own == 0 ? 2 : 4);
  });
}

TEST(Arguments, ThatAreWrongAreNamedWithTheirNumbers) {
  launch(1, [](RankContext& context) {
    auto& group = *context.group();
    std::vector<float> four(4), three(3);
    const auto in = std::as_bytes(std::span(four));
    const auto out = std::as_writable_bytes(std::span(three));
    const std::vector<std::int64_t> counts = {2}, negative = {-1}, two = {2, 2};
    const auto all_to_all = [&](std::span<const std::int64_t> send) {
      group.all_to_all(in, send, out, counts, Dtype::kFloat32);
    };
    using Call = std::pair<std::function<void()>, std::string>;
    const Call calls[] = {
        {[&] { group.reduce_scatter({in}, out, Dtype::kFloat32, ReduceOp::kSum); },
         "reduce_scatter: input must hold 1 chunks of 3 elements, got 4"},
        {[&] {
           group.reduce_scatter({in.first(6), in.first(6)}, out, Dtype::kFloat32, ReduceOp::kSum);
         },
         "reduce_scatter: a buffer of float32 needs a multiple of 4 bytes, got 6"},
        {[&] { group.all_gather(in.first(5), Dtype::kFloat32, kIgnore); },
         "all_gather: a buffer of float32 needs a multiple of 4 bytes, got 5"},
        {[&] { group.broadcast(out, 1, Dtype::kFloat32); },
         "broadcast: root must be in [0, 1), got 1"},
        {[&] { group.send(in, -1, 0, Dtype::kFloat32); }, "send: to must be in [0, 1), got -1"},
        {[&] { group.recv(out, 2, 0, Dtype::kFloat32); }, "recv: from must be in [0, 1), got 2"},
        {[&] { all_to_all(two); }, "all_to_all: send_counts needs one of 1 ranks each, got 2"},
        {[&] { all_to_all(negative); }, "all_to_all: send_counts must not be negative, got -1"},
        {[&] { all_to_all(counts); },
         "all_to_all: send_counts must add up to the buffer's 4 elements, got 2"},
        {[&] {
           const std::vector<std::int64_t> all = {4};
           const auto same = std::as_writable_bytes(std::span(four));
           group.all_to_all(in, all, same, all, Dtype::kFloat32);
         },
         "all_to_all: input and output must not overlap"},
        {[&] {  // the second part is in the first
           const auto same = std::as_writable_bytes(std::span(three));
           group.all_to_all(ByteParts{in.first(8)}, counts,
                            MutableByteParts{same.first(4), same.first(4)}, counts,
                            Dtype::kFloat32);
         },
         "all_to_all: parts of the output must not overlap"},
        {[&] {  // the output begins within the input
           const auto same = std::as_writable_bytes(std::span(four));
           group.all_to_all(in.first(8), counts, same.subspan(4, 8), counts, Dtype::kFloat32);
         },
         "all_to_all: input and output must not overlap"},
        {[&] {  // between two parts of the input
           const auto same = std::as_writable_bytes(std::span(four));
           group.all_to_all(ByteParts{in.first(4), in.subspan(8, 4)}, counts,
                            MutableByteParts{same.subspan(4, 8)}, counts, Dtype::kFloat32);
         },
         "all_to_all: input and output must not overlap"},
        {[&] {
           const std::vector<std::int64_t> three_come = {3};
           group.all_to_all(in.first(8), counts, out, three_come, Dtype::kFloat32);
         },
         "all_to_all: rank 0 sends 2 float32 to itself, and expects 3"},
        {[&] {  // nothing overlaps nothing
           const std::vector<std::int64_t> none = {0};
           const auto same = std::as_writable_bytes(std::span(four));
           group.all_to_all(in.subspan(4, 0), none, same, none, Dtype::kFloat32);
         },
         "all_to_all: recv_counts must add up to the buffer's 4 elements, got 0"},
        {[&] { group.send(in, 0, -1, Dtype::kFloat32); }, "send: tag must be at least 0, got -1"},
        {[&] { group.recv(out, 0, -7, Dtype::kFloat32); }, "recv: tag must be at least 0, got -7"},
        {[&] { all_gather(group, four, std::span(three)); },
         "all_gather: output must hold 1 inputs of 4 elements, got 3"},
    };
    for (const auto& [call, message] : calls) EXPECT_EQ(error_message<ValueError>(call), message);
    group.barrier()->wait();  // a rejected argument poisons nothing
  });
}

}  // namespace
}  // namespace moegrad::collective_mismatch_test
