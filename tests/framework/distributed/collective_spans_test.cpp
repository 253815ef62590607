// SPDX-License-Identifier: Apache-2.0
// What the span log says of collectives.
#include <algorithm>

#include "framework/runtime/span.h"
#include "tests/framework/distributed/collective_testing.h"

namespace moegrad::collective_spans_test {
namespace {

using namespace std::chrono_literals;

const auto kIgnore = [](PeerSpans) {};

WorkPtr gather(ProcessGroup& group, const std::vector<float>& input, CollectiveQueue queue,
               const std::string& label = {}) {
  return group.all_gather(std::as_bytes(std::span(input)), Dtype::kFloat32, kIgnore,
                          {.queue = queue, .label = label});
}

std::vector<Span> of_kind(const std::vector<Span>& spans, SpanKind kind) {
  std::vector<Span> found;
  std::ranges::copy_if(spans, std::back_inserter(found),
                       [&](const Span& span) { return span.kind == kind; });
  return found;
}

TEST(CollectiveSpans, TellNothingOfACallThatWasGivenUp) {
  test::RankLatch given_up(1);
  launch(2,
         [&](RankContext& context) {
           if (context.rank() == 1) return given_up.wait();
           context.spans().start(1);
           const auto worked = context.work()->read();
           try {
             const auto work = context.group()->barrier();
             throw ValueError("caught");
           } catch (const ValueError&) {
           }
           EXPECT_TRUE(of_kind(context.spans().spans(), SpanKind::kCollective).empty());
           EXPECT_EQ(context.work()->read(), worked);
           given_up.count_down();
         },
         {.on_failure = [](const std::string&) {}});
}

TEST(CollectiveSpans, TellOperationLaneBytesGroupAndSequence) {
  launch(4, [](RankContext& context) {
    auto& group = *context.group();
    const std::vector<float> input(100);
    gather(group, input, CollectiveQueue::kGather, "before start")->wait();
    context.spans().start(1);
    gather(group, input, CollectiveQueue::kGather, "layers.3")->wait();
    std::vector<float> output(25);
    group
        .reduce_scatter({std::as_bytes(std::span(input))},
                        std::as_writable_bytes(std::span(output)), Dtype::kFloat32, ReduceOp::kSum,
                        {.queue = CollectiveQueue::kReduce})
        ->wait();
    const int half[] = {context.rank() / 2 * 2, context.rank() / 2 * 2 + 1};
    const auto pair = group.subgroup(half, "pair");
    gather(*pair, input, CollectiveQueue::kDefault)->wait();

    const auto spans = of_kind(context.spans().spans(), SpanKind::kCollective);
    ASSERT_EQ(spans.size(), 4U);
    EXPECT_EQ(spans[0].name, "all_gather layers.3");
    EXPECT_EQ(spans[0].lane, Lane::kGather);
    EXPECT_EQ(spans[0].bytes, 3 * 400);
    EXPECT_EQ(spans[0].group, "world");
    EXPECT_EQ(spans[0].sequence, 1);
    EXPECT_EQ(spans[1].name, "reduce_scatter");
    EXPECT_EQ(spans[1].lane, Lane::kReduce);
    EXPECT_EQ(spans[1].bytes, 3 * 100);
    EXPECT_EQ(spans[1].sequence, 0);
    EXPECT_EQ(spans[2].name.substr(0, 28), "barrier subgroup of ranks {" + std::to_string(half[0]));
    EXPECT_EQ(spans[3].name, "all_gather");
    EXPECT_EQ(spans[3].lane, Lane::kCollective);
    EXPECT_EQ(spans[3].bytes, 400);
    EXPECT_EQ(spans[3].group, "pair");
  });
}

TEST(CollectiveSpans, ReachFromTheMeetingOverTheModelledLinkToTheEnd) {
  constexpr auto kLatency = 20ms;
  const auto body = [&](RankContext& context) {
    context.spans().start(1);
    const std::vector<float> input(4);
    const auto posted = SpanClock::now();
    const auto work = gather(*context.group(), input, CollectiveQueue::kGather);
    while (!work->test()) std::this_thread::sleep_for(1ms);
    const auto ended = SpanClock::now();
    work->wait();
    work->wait();
    const auto spans = context.spans().spans();
    ASSERT_EQ(spans.size(), 1U);  // once, and no wait
    EXPECT_LE(posted, spans[0].begin);
    EXPECT_GE(spans[0].end - spans[0].begin, kLatency);
    EXPECT_LE(spans[0].end, ended);
    EXPECT_LT(spans[0].busy, kLatency);
  };
  launch(2, body, {.link = {.latency = kLatency}});
}

TEST(CollectiveSpans, AreRecordedWithoutWait) {
  const auto body = [](RankContext& context) {
    context.spans().start(1);
    const std::vector<float> input(4);
    const auto collectives = [&] {
      std::vector<std::string> names;
      for (const auto& span : of_kind(context.spans().spans(), SpanKind::kCollective)) {
        names.push_back(span.name);
      }
      return names;
    };
    {
      const auto polled = gather(*context.group(), input, CollectiveQueue::kGather, "polled");
      while (!polled->test()) std::this_thread::sleep_for(1ms);
      EXPECT_EQ(collectives(), std::vector<std::string>{"all_gather polled"});
    }
    EXPECT_TRUE(of_kind(context.spans().spans(), SpanKind::kWait).empty());
    gather(*context.group(), input, CollectiveQueue::kGather, "dropped");
    EXPECT_EQ(collectives(), (std::vector<std::string>{"all_gather polled", "all_gather dropped"}));
    // Which stood still until it had ended.
    const auto waits = of_kind(context.spans().spans(), SpanKind::kWait);
    ASSERT_EQ(waits.size(), 1U);
    EXPECT_EQ(waits[0].name, "wait for all_gather dropped");
  };
  launch(2, body, {.link = {.latency = 5ms}});
}

TEST(CollectiveSpans, AFailedCollectiveLeavesNone) {
  const auto body = [](RankContext& context) {
    context.spans().start(1);
    const std::vector<float> input(4);
    {
      const auto work =
          context.group()->all_gather(std::as_bytes(std::span(input)), Dtype::kFloat32,
                                      [](PeerSpans) { throw ValueError("consumer"); });
      EXPECT_THROW(work->wait(), Error);
      EXPECT_TRUE(work->test());
    }
    EXPECT_TRUE(context.spans().spans().empty());
  };
  launch(2, body, {.on_failure = [](const std::string&) {}});
}

TEST(CollectiveSpans, BeginWhenTheLastRankJoins) {
  SpanClock::time_point joined;
  launch(2, [&](RankContext& context) {
    context.spans().start(1);
    const std::vector<float> input(4);
    if (context.rank() == 1) {
      std::this_thread::sleep_for(10ms);
      joined = SpanClock::now();
    }
    gather(*context.group(), input, CollectiveQueue::kGather)->wait();
    EXPECT_GE(of_kind(context.spans().spans(), SpanKind::kCollective).at(0).begin, joined);
  });
}

TEST(CollectiveSpans, AWaitThatBlocksIsASpanOnTheComputeLane) {
  const auto body = [](RankContext& context) {
    context.spans().start(1);
    const std::vector<float> input(4);
    const auto work = gather(*context.group(), input, CollectiveQueue::kGather, "layers.0");
    const auto begin = SpanClock::now();
    work->wait();
    const auto end = SpanClock::now();
    const auto waits = of_kind(context.spans().spans(), SpanKind::kWait);
    ASSERT_EQ(waits.size(), 1U);
    EXPECT_EQ(waits[0].name, "wait for all_gather layers.0");
    EXPECT_EQ(waits[0].lane, Lane::kCompute);
    EXPECT_LE(begin, waits[0].begin);
    EXPECT_LE(waits[0].end, end);
    EXPECT_LE(of_kind(context.spans().spans(), SpanKind::kCollective).at(0).end, waits[0].end);
  };
  launch(2, body, {.link = {.latency = 5ms}});
}

TEST(CollectiveSpans, AConsumersCpuTimeIsItsOwnRanks) {
  constexpr auto kWork = 5ms;
  launch(2, [&](RankContext& context) {
    context.spans().start(1);
    const auto consume = [&](PeerSpans) {
      const auto end = thread_cpu_time() + kWork;
      while (context.rank() == 1 && thread_cpu_time() < end) {
      }
    };
    context.group()->all_gather({}, Dtype::kFloat32, consume)->wait();
    const auto span = of_kind(context.spans().spans(), SpanKind::kCollective).at(0);
    if (context.rank() == 1) {
      EXPECT_GE(span.busy, kWork);
    } else {
      EXPECT_LT(span.busy, kWork);
    }
  });
}

TEST(CollectiveSpans, AreOffAtLevelZero) {
  launch(2, [](RankContext& context) {
    context.spans().start(0);
    context.group()->barrier()->wait();
    EXPECT_TRUE(context.spans().spans().empty());
  });
}

}  // namespace
}  // namespace moegrad::collective_spans_test
