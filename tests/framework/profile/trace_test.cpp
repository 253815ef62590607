// SPDX-License-Identifier: Apache-2.0
#include "framework/profile/trace.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

namespace moegrad::trace_test {
namespace {

using nlohmann::json;

constexpr std::int64_t kStart = 5'000'000;  // a clock's zero is anywhere

Span span(const std::string& name, SpanKind kind, Lane lane, std::int64_t begin, std::int64_t end) {
  const auto at = [](std::int64_t time) {
    return SpanClock::time_point(std::chrono::nanoseconds(kStart + time));
  };
  return {.name = name, .kind = kind, .lane = lane, .begin = at(begin), .end = at(end)};
}

Span collective(const std::string& name, Lane lane, std::int64_t begin, std::int64_t end) {
  auto collective = span(name, SpanKind::kCollective, lane, begin, end);
  collective.busy = std::chrono::nanoseconds(1'250);
  collective.bytes = 1024;
  collective.group = "world";
  collective.sequence = 7;
  return collective;
}

json events_of(const std::vector<std::vector<Span>>& ranks) {
  std::ostringstream out;
  write_trace(out, ranks);
  return json::parse(out.str()).at("traceEvents");
}

/// Events of one kind: "X" spans, "M" names.
std::vector<json> of_phase(const json& events, const std::string& phase) {
  std::vector<json> found;
  for (const auto& event : events) {
    if (event.at("ph") == phase) found.push_back(event);
  }
  return found;
}

/// (rank, thread) -> its name.
std::map<std::pair<int, int>, std::string> threads_of(const json& events) {
  std::map<std::pair<int, int>, std::string> threads;
  for (const auto& event : of_phase(events, "M")) {
    if (event.at("name") != "thread_name") continue;
    threads[{event.at("pid"), event.at("tid")}] = event.at("args").at("name");
  }
  return threads;
}

TEST(Trace, OfNothingIsValid) { EXPECT_TRUE(events_of({}).empty()); }

TEST(Trace, HasAProcessPerRankAndAThreadPerLane) {
  const std::vector<Span> spans = {span("forward", SpanKind::kPhase, Lane::kCompute, 0, 50),
                                   collective("all_gather", Lane::kGather, 0, 10),
                                   collective("reduce_scatter", Lane::kReduce, 60, 70),
                                   span("optimizer", SpanKind::kPhase, Lane::kOptimizer, 80, 90),
                                   collective("barrier", Lane::kCollective, 90, 95)};
  const auto events = events_of({spans, spans});
  std::vector<std::string> processes;
  for (const auto& event : of_phase(events, "M")) {
    if (event.at("name") == "process_name") processes.push_back(event.at("args").at("name"));
  }
  EXPECT_EQ(processes, (std::vector<std::string>{"rank 0", "rank 1"}));
  const auto threads = threads_of(events);
  EXPECT_EQ(threads.size(), 10U);
  const std::map<std::string, std::string> lanes = {{"forward", "compute"},
                                                    {"all_gather", "gather"},
                                                    {"reduce_scatter", "reduce"},
                                                    {"optimizer", "optimizer"},
                                                    {"barrier", "collective"}};
  std::map<int, int> spans_of_rank;
  for (const auto& event : of_phase(events, "X")) {
    EXPECT_EQ(threads.at({event.at("pid"), event.at("tid")}), lanes.at(event.at("name")));
    ++spans_of_rank[event.at("pid")];
  }
  EXPECT_EQ(spans_of_rank, (std::map<int, int>{{0, 5}, {1, 5}}));
}

TEST(Trace, TellsTimesInMicrosecondsSinceTheFirstSpanOfAnyRank) {
  const auto events =
      of_phase(events_of({{span("late", SpanKind::kPhase, Lane::kCompute, 2'500, 10'750)},
                          {span("early", SpanKind::kPhase, Lane::kCompute, 1'000, 2'000)}}),
               "X");
  ASSERT_EQ(events.size(), 2U);
  EXPECT_DOUBLE_EQ(events[0].at("ts"), 1.5);
  EXPECT_DOUBLE_EQ(events[0].at("dur"), 8.25);
  EXPECT_DOUBLE_EQ(events[1].at("ts"), 0.0);
  EXPECT_DOUBLE_EQ(events[1].at("dur"), 1.0);
}

TEST(Trace, ShowsBytesGroupAndSequenceOfCollectivesAlone) {
  const auto events = of_phase(events_of({{collective("all_gather", Lane::kGather, 0, 1),
                                           span("wait", SpanKind::kWait, Lane::kCompute, 1, 2)}}),
                               "X");
  EXPECT_EQ(events[0].at("args"),
            (json{{"cpu_us", 1.25}, {"bytes", 1024}, {"group", "world"}, {"sequence", 7}}));
  EXPECT_EQ(events[0].at("cat"), "collective");
  EXPECT_FALSE(events[1].contains("args"));
  EXPECT_EQ(events[1].at("cat"), "wait");
}

TEST(Trace, ShowsTheCpuTimeOfPhases) {
  auto phase = span("forward", SpanKind::kPhase, Lane::kCompute, 0, 9'000);
  phase.busy = std::chrono::nanoseconds(6'500);
  const auto events = of_phase(
      events_of({{span("layer", SpanKind::kModule, Lane::kCompute, 0, 9'000), phase}}), "X");
  EXPECT_EQ(events[0].at("args"), (json{{"cpu_us", 6.5}}));
  EXPECT_FALSE(events[1].contains("args"));
}

TEST(Trace, PutsWhatIsAroundASpanBeforeIt) {
  // In the order in which they end, as they are recorded.
  const std::vector<Span> spans = {span("function", SpanKind::kFunction, Lane::kCompute, 0, 10),
                                   span("wait", SpanKind::kWait, Lane::kCompute, 15, 20),
                                   span("module", SpanKind::kModule, Lane::kCompute, 0, 20),
                                   span("phase", SpanKind::kPhase, Lane::kCompute, 0, 20)};
  std::vector<std::string> names;
  for (const auto& event : of_phase(events_of({spans}), "X")) names.push_back(event.at("name"));
  EXPECT_EQ(names, (std::vector<std::string>{"phase", "module", "function", "wait"}));
}

TEST(Trace, GivesOverlappingCollectivesThreadsOfTheirOwn) {
  const auto events =
      events_of({{collective("a", Lane::kGather, 0, 10), collective("b", Lane::kGather, 5, 20),
                  collective("c", Lane::kGather, 10, 15), collective("d", Lane::kGather, 12, 30),
                  collective("e", Lane::kReduce, 0, 30)}});
  const auto threads = threads_of(events);
  std::map<std::string, std::string> thread_of;
  for (const auto& event : of_phase(events, "X")) {
    thread_of[event.at("name")] = threads.at({0, event.at("tid")});
  }
  EXPECT_EQ(thread_of, (std::map<std::string, std::string>{{"a", "gather"},
                                                           {"b", "gather 2"},
                                                           {"c", "gather"},
                                                           {"d", "gather 3"},
                                                           {"e", "reduce"}}));
}

TEST(Trace, EscapesNames) {
  const std::string name = "a \"quoted\" \\ line\n\x01 \xc3\xa9";
  EXPECT_EQ(of_phase(events_of({{span(name, SpanKind::kModule, Lane::kCompute, 0, 1)}}), "X")
                .at(0)
                .at("name"),
            name);
  // What is no UTF-8 becomes the replacement character.
  EXPECT_EQ(of_phase(events_of({{span("\xff", SpanKind::kModule, Lane::kCompute, 0, 1)}}), "X")
                .at(0)
                .at("name"),
            "\xef\xbf\xbd");
}

}  // namespace
}  // namespace moegrad::trace_test
