// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/span.h"

#include <algorithm>
#include <thread>

#include "framework/runtime/rank_context.h"
#include "tests/testing.h"

namespace moegrad::span_test {
namespace {

using test::message_of;

std::vector<std::string> names_of(const std::vector<Span>& spans) {
  std::vector<std::string> names;
  for (const auto& span : spans) names.push_back(span.name);
  return names;
}

void record_one_of_each() {
  const SpanGuard phase(SpanKind::kPhase, Lane::kOptimizer, "phase");
  const SpanGuard module(SpanKind::kModule, Lane::kCompute, "forward ", "layer");
  const SpanGuard function(SpanKind::kFunction, Lane::kCompute, "matmul");
}

TEST(Spans, AreOffUntilStarted) {
  RankContext context;
  const RankContextGuard guard(context);
  record_one_of_each();
  EXPECT_TRUE(context.spans().spans().empty());
  context.spans().start(2);
  record_one_of_each();
  context.spans().stop();
  record_one_of_each();
  EXPECT_EQ(context.spans().spans().size(), 3U);
}

TEST(Spans, ALevelKeepsItsKindsAndThoseBelow) {
  const std::vector<std::string> expected[] = {
      {"phase"}, {"forward layer", "phase"}, {"matmul", "forward layer", "phase"}};
  for (int level = 0; level <= 2; ++level) {
    RankContext context;
    const RankContextGuard guard(context);
    context.spans().start(level);
    record_one_of_each();
    EXPECT_EQ(names_of(context.spans().spans()), expected[level]);
  }
}

TEST(Spans, HoldWhatTheGuardWasGivenAndNest) {
  RankContext context;
  const RankContextGuard guard(context);
  context.spans().start(1);
  const auto before = SpanClock::now();
  record_one_of_each();
  const auto after = SpanClock::now();
  const auto spans = context.spans().spans();
  ASSERT_EQ(spans.size(), 2U);
  const auto& [inner, outer] = std::tie(spans[0], spans[1]);
  EXPECT_EQ(outer.kind, SpanKind::kPhase);
  EXPECT_EQ(outer.lane, Lane::kOptimizer);
  EXPECT_EQ(inner.kind, SpanKind::kModule);
  EXPECT_EQ(inner.lane, Lane::kCompute);
  EXPECT_LE(before, outer.begin);
  EXPECT_LE(outer.begin, inner.begin);
  EXPECT_LE(inner.begin, inner.end);
  EXPECT_LE(inner.end, outer.end);
  EXPECT_LE(outer.end, after);
}

TEST(Spans, APhaseWithinAPhaseIsNone) {
  RankContext context;
  const RankContextGuard guard(context);
  context.spans().start(0);
  for (int i = 0; i < 2; ++i) {
    const SpanGuard backward(SpanKind::kPhase, Lane::kCompute, "backward");
    const SpanGuard recomputed(SpanKind::kPhase, Lane::kCompute, "forward");
  }
  EXPECT_EQ(names_of(context.spans().spans()), (std::vector<std::string>{"backward", "backward"}));
}

TEST(Spans, APhaseKnowsItsCpuTimeWithoutSleep) {
  RankContext context;
  const RankContextGuard guard(context);
  context.spans().start(0);
  const auto work = std::chrono::milliseconds(2), sleep = std::chrono::milliseconds(20);
  {
    const SpanGuard phase(SpanKind::kPhase, Lane::kCompute, "phase");
    std::this_thread::sleep_for(sleep);
    const auto end = thread_cpu_time() + work;
    while (thread_cpu_time() < end) {
    }
  }
  const auto span = context.spans().spans().at(0);
  EXPECT_GE(span.busy, work);
  EXPECT_LE(span.busy + sleep / 2, span.end - span.begin);
}

TEST(Spans, AFullRingKeepsTheNewestAndCountsTheRest) {
  SpanRecorder recorder;
  recorder.start(0, 3);
  for (int i = 0; i < 8; ++i) recorder.add({.name = std::to_string(i)});
  EXPECT_EQ(names_of(recorder.spans()), (std::vector<std::string>{"5", "6", "7"}));
  EXPECT_EQ(recorder.dropped(), 5);
  recorder.start(0, 3);
  EXPECT_TRUE(recorder.spans().empty());
  EXPECT_EQ(recorder.dropped(), 0);
}

TEST(Spans, CanBeReadFromAMomentOn) {
  SpanRecorder recorder;
  recorder.start(0);
  const auto moment = SpanClock::now();
  const auto one = std::chrono::nanoseconds(1);
  recorder.add({.name = "before", .begin = moment - 2 * one, .end = moment - one});
  recorder.add({.name = "across", .begin = moment - one, .end = moment});
  EXPECT_EQ(names_of(recorder.spans(moment)), std::vector<std::string>{"across"});
}

TEST(Spans, CanBeReadWhileTheRankRecords) {
  RankContext context;
  std::atomic<bool> done = false;
  const std::jthread rank([&] {
    const RankContextGuard guard(context);
    context.spans().start(2, 100);
    for (int i = 0; i < 1000; ++i) record_one_of_each();
    done = true;
  });
  std::size_t most = 0;
  while (!done) most = std::max(most, context.spans().spans().size());
  EXPECT_LE(most, 100U);
  EXPECT_EQ(context.spans().dropped(), 2900);
}

TEST(Spans, RefuseUnknownLevelsAndAnEmptyRing) {
  SpanRecorder recorder;
  EXPECT_EQ(message_of<ValueError>([&] { recorder.start(3); }),
            "spans: level must be 0, 1 or 2, got 3");
  EXPECT_EQ(message_of<ValueError>([&] { recorder.start(-1); }),
            "spans: level must be 0, 1 or 2, got -1");
  EXPECT_EQ(message_of<ValueError>([&] { recorder.start(0, 0); }),
            "spans: capacity must be positive, got 0");
  EXPECT_FALSE(recorder.records(SpanKind::kPhase));
}

}  // namespace
}  // namespace moegrad::span_test
