// SPDX-License-Identifier: Apache-2.0
#include "framework/profile/trace.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>

namespace moegrad {
namespace {

using Json = nlohmann::ordered_json;

double microseconds(std::chrono::nanoseconds time) {
  return static_cast<double>(time.count()) / 1000.0;
}

/// Writes one event per line, so that people can read it and diff can compare it.
class EventList {
 public:
  explicit EventList(std::ostream& out) : out_(out) {
    out_ << R"({"displayTimeUnit":"ms","traceEvents":[)";
  }
  ~EventList() { out_ << "\n]}\n"; }
  EventList(const EventList&) = delete;
  EventList& operator=(const EventList&) = delete;

  void add(const Json& event) {
    // Invalid UTF-8 in a name is replaced; it must not end the trace.
    out_ << (first_ ? "\n" : ",\n")
         << event.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
    first_ = false;
  }

 private:
  std::ostream& out_;
  bool first_ = true;
};

class RankWriter {
 public:
  RankWriter(EventList& events, std::size_t rank, SpanClock::time_point start)
      : events_(events), rank_(rank), start_(start) {
    name("process_name", {}, "rank " + std::to_string(rank));
    events_.add({{"name", "process_sort_index"},
                 {"ph", "M"},
                 {"pid", rank_},
                 {"args", {{"sort_index", rank_}}}});
  }

  void add(const Span& span) {
    Json event = {{"name", span.name},
                  {"cat", to_string(span.kind)},
                  {"ph", "X"},
                  {"ts", microseconds(span.begin - start_)},
                  {"dur", microseconds(span.end - span.begin)},
                  {"pid", rank_},
                  {"tid", thread_of(span)}};
    if (span.kind == SpanKind::kPhase || span.kind == SpanKind::kCollective) {
      event["args"]["cpu_us"] = microseconds(span.busy);
    }
    if (span.kind == SpanKind::kCollective) {
      event["args"].update(
          {{"bytes", span.bytes}, {"group", span.group}, {"sequence", span.sequence}});
    }
    events_.add(event);
  }

 private:
  // Threads of one lane are numbered lane, lane + kLanes, lane + 2 kLanes, ...
  std::size_t thread_of(const Span& span) {
    const auto lane = static_cast<std::size_t>(span.lane);
    auto& ends = ends_[lane];
    std::size_t track = 0;
    // Spans of the rank's own thread nest, so they share a thread. A collective may not begin on a
    // thread before the last collective there has ended.
    if (span.kind == SpanKind::kCollective) {
      while (track < ends.size() && span.begin < ends[track]) ++track;
    }
    const auto thread = lane + track * kLanes;
    if (track == ends.size()) {
      ends.emplace_back();
      std::string title(to_string(span.lane));
      if (track > 0) title.append(1, ' ').append(std::to_string(track + 1));
      name("thread_name", thread, title);
      events_.add({{"name", "thread_sort_index"},
                   {"ph", "M"},
                   {"pid", rank_},
                   {"tid", thread},
                   {"args", {{"sort_index", 1000 * lane + track}}}});
    }
    ends[track] = std::max(ends[track], span.end);
    return thread;
  }

  void name(const char* what, std::size_t thread, const std::string& title) {
    events_.add({{"name", what},
                 {"ph", "M"},
                 {"pid", rank_},
                 {"tid", thread},
                 {"args", {{"name", title}}}});
  }

  EventList& events_;
  std::size_t rank_;
  SpanClock::time_point start_;
  std::array<std::vector<SpanClock::time_point>, kLanes> ends_;  // of each thread's last span
};

/// The spans by begin. A span that encloses another one comes before it.
std::vector<const Span*> in_order(const std::vector<Span>& spans) {
  std::vector<const Span*> order;
  // A span is recorded when it ends. So of two spans that begin at the same time, the one that was
  // recorded later encloses the other.
  for (auto span = spans.rbegin(); span != spans.rend(); ++span) order.push_back(&*span);
  std::ranges::stable_sort(order, {}, &Span::begin);
  return order;
}

}  // namespace

void write_trace(std::ostream& out, const std::vector<std::vector<Span>>& ranks) {
  auto start = SpanClock::time_point::max();
  for (const auto& spans : ranks) {
    for (const auto& span : spans) start = std::min(start, span.begin);
  }
  EventList events(out);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    RankWriter writer(events, rank, start);
    for (const auto* span : in_order(ranks[rank])) writer.add(*span);
  }
}

}  // namespace moegrad
