// SPDX-License-Identifier: Apache-2.0
#include "tools/fsdp_timeline/timeline_report.h"

#include <algorithm>
#include <cmath>

#include "tests/testing.h"

namespace moegrad::tools::timeline_report_test {
namespace {

using std::chrono::milliseconds;

SpanClock::time_point at(std::int64_t ms) { return SpanClock::time_point(milliseconds(ms)); }

Span span(SpanKind kind, Lane lane, std::int64_t begin, std::int64_t end, std::int64_t bytes = 0) {
  Span result;
  result.kind = kind;
  result.lane = lane;
  result.begin = at(begin);
  result.end = at(end);
  result.bytes = bytes;
  return result;
}

/// Two steps of 10 and 20 ms. 11 ms of compute, 1 ms of it waiting; 4 ms of gathers, 2 of them
/// hidden; 4 ms of reductions, 1 hidden; another collective of 1 ms, exposed.
RankTimeline some_rank() {
  RankTimeline rank;
  rank.step_begins = {at(0), at(10), at(30)};
  rank.spans = {span(SpanKind::kPhase, Lane::kCompute, 0, 6),
                span(SpanKind::kWait, Lane::kCompute, 2, 3),
                span(SpanKind::kCollective, Lane::kGather, 1, 4, 100),
                span(SpanKind::kCollective, Lane::kGather, 10, 11, 50),
                span(SpanKind::kCollective, Lane::kReduce, 17, 21, 30),
                span(SpanKind::kPhase, Lane::kOptimizer, 20, 25),
                span(SpanKind::kCollective, Lane::kCollective, 28, 29, 8)};
  rank.peak_bytes = {1, 20, 3, 4, 5, 6};
  rank.peak_total = 30;
  return rank;
}

TEST(Median, IsTheMiddleOrTheMeanOfTheTwoInTheMiddle) {
  EXPECT_TRUE(std::isnan(median({})));
  EXPECT_EQ(median({3}), 3);
  EXPECT_EQ(median({3, 1}), 2);
  EXPECT_EQ(median({9, 1, 4}), 4);
  EXPECT_EQ(median({8, 1, 9, 2}), 5);
  EXPECT_EQ(median({5, 5, 5, 1000}), 5);
  EXPECT_EQ(median({1e308, 1.5e308}), 1.25e308);
}

TEST(TimelineFigures, AreMeansOverStepsAndRanks) {
  auto other = some_rank();
  other.spans.pop_back();
  other.spans[2].bytes = 300;
  other.step_begins = {at(0), at(100), at(200)};  // the step's time is rank 0's
  other.peak_bytes = {10, 2, 3, 4, 5, 6};
  other.peak_total = 29;
  const auto figures = timeline_figures({some_rank(), other});
  EXPECT_DOUBLE_EQ(figures.step, 0.015);
  EXPECT_DOUBLE_EQ(figures.compute, 0.005);
  EXPECT_DOUBLE_EQ(figures.gather, 0.002);
  EXPECT_DOUBLE_EQ(figures.exposed_gather, 0.001);
  EXPECT_DOUBLE_EQ(figures.reduce, 0.002);
  EXPECT_DOUBLE_EQ(figures.exposed_reduce, 0.0015);
  EXPECT_DOUBLE_EQ(figures.other, 0.00025);
  EXPECT_DOUBLE_EQ(figures.exposed_other, 0.00025);
  EXPECT_DOUBLE_EQ(figures.communication(), 0.00425);
  EXPECT_DOUBLE_EQ(figures.exposed(), 0.00275);
  EXPECT_DOUBLE_EQ(figures.gathered_bytes, 125);
  EXPECT_DOUBLE_EQ(figures.reduced_bytes, 15);
  EXPECT_EQ(figures.peak_bytes, (std::array<std::int64_t, kMemoryTags>{10, 20, 3, 4, 5, 6}));
  EXPECT_EQ(figures.peak_total, 30);
}

TEST(TimelineSummary, SaysWhatIsModelled) {
  TimelineOptions options;
  options.ranks = 1;
  options.steps = 2;
  options.link = {.latency = std::chrono::microseconds(50), .bytes_per_second = 2.5e8};
  EXPECT_EQ(timeline_summary(options, {some_rank()}),
            "steps             2 on 1 ranks, 256 tokens per rank and step\n"
            "prefetch          on\n"
            "link              MODELLED: latency 50.0 us, 0.2500 GB/s\n"
            "step              15.000 ms (median)\n"
            "compute           5.000 ms a step\n"
            "gather            2.000 ms a step, exposed 50.0 % (modelled link)\n"
            "reduce            2.000 ms a step, exposed 75.0 % (modelled link)\n"
            "other             0.500 ms a step, exposed 100.0 % (modelled link)\n"
            "communication     4.500 ms a step, exposed 66.7 % (modelled link)\n"
            "gathered bytes    75 received per rank and step\n"
            "reduced bytes     15 received per rank and step\n"
            "peak bytes                 1 parameters\n"
            "peak bytes                20 gradients\n"
            "peak bytes                 3 optimizer\n"
            "peak bytes                 4 activations\n"
            "peak bytes                 5 communication\n"
            "peak bytes                 6 checkpoint\n"
            "peak bytes                30 at one moment\n"
            "spans             7\n");
  options.link = {};
  options.prefetch = false;
  const auto text = timeline_summary(options, {some_rank()});
  EXPECT_NE(text.find("link              memory of one process"), std::string::npos) << text;
  EXPECT_NE(text.find("prefetch          off"), std::string::npos) << text;
  EXPECT_EQ(text.find("odelled link"), std::string::npos) << text;
}

TEST(RunTimeline, KeepsEverySpanOfALongRun) {
  TimelineOptions options;
  options.config.num_hidden_layers = 1;
  options.ranks = 1;
  options.batch = 1;
  options.sequence_length = 1;
  options.level = 2;
  options.steps = 700;
  const auto ranks = run_timeline(options);
  EXPECT_GT(ranks[0].spans.size(), SpanRecorder::kDefaultCapacity);
  EXPECT_EQ(std::ranges::count(ranks[0].spans, "optimizer", &Span::name), options.steps);
}

TEST(RunTimeline, CountsTheBytesOfAStep) {
  TimelineOptions options;
  options.steps = 2;
  options.window = 2;
  const auto ranks = run_timeline(options);
  ASSERT_EQ(ranks.size(), 2U);
  EXPECT_EQ(ranks[1].step_begins.size(), 3U);
  const auto figures = timeline_figures(ranks);
  auto fewer = options.config;
  --fewer.num_hidden_layers;
  const auto whole = models::parameter_count(options.config);
  const auto layer = whole - models::parameter_count(fewer);
  const auto layers = options.config.num_hidden_layers;
  // Half of everything comes from the other rank: the layers twice, the rest once.
  EXPECT_EQ(figures.gathered_bytes, static_cast<double>(4 * (whole + layers * layer) / 2));
  EXPECT_EQ(figures.reduced_bytes, static_cast<double>(4 * whole / 2));
}

}  // namespace
}  // namespace moegrad::tools::timeline_report_test
