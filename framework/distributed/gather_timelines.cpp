// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/gather_timelines.h"

#include "framework/distributed/collectives.h"
#include "framework/runtime/byte_stream.h"

namespace moegrad {
namespace {

std::int64_t nanoseconds(SpanClock::time_point time) { return time.time_since_epoch().count(); }

SpanClock::time_point read_time(ByteReader& reader) {
  return SpanClock::time_point(SpanClock::duration(reader.number<std::int64_t>()));
}

void write(ByteWriter& writer, const Span& span) {
  writer.text(span.name);
  writer.number(static_cast<std::uint8_t>(span.kind));
  writer.number(static_cast<std::uint8_t>(span.lane));
  writer.number(nanoseconds(span.begin));
  writer.number(nanoseconds(span.end));
  writer.number(static_cast<std::int64_t>(span.busy.count()));
  writer.number(span.bytes);
  writer.text(span.group);
  writer.number(span.sequence);
}

Span read_span(ByteReader& reader) {
  Span span;
  span.name = reader.text();
  span.kind = static_cast<SpanKind>(reader.number<std::uint8_t>());
  span.lane = static_cast<Lane>(reader.number<std::uint8_t>());
  span.begin = read_time(reader);
  span.end = read_time(reader);
  span.busy = std::chrono::nanoseconds(reader.number<std::int64_t>());
  span.bytes = reader.number<std::int64_t>();
  span.group = reader.text();
  span.sequence = reader.number<std::int64_t>();
  return span;
}

std::vector<std::byte> bytes_of(const RankTimeline& timeline) {
  ByteWriter writer;
  writer.number(std::ssize(timeline.spans));
  for (const auto& span : timeline.spans) write(writer, span);
  writer.number(std::ssize(timeline.step_begins));
  for (const auto begin : timeline.step_begins) writer.number(nanoseconds(begin));
  for (const auto peak : timeline.peak_bytes) writer.number(peak);
  writer.number(timeline.peak_total);
  return writer.take();
}

RankTimeline timeline_of(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  RankTimeline timeline;
  for (auto left = reader.number<std::ptrdiff_t>(); left > 0; --left) {
    timeline.spans.push_back(read_span(reader));
  }
  for (auto left = reader.number<std::ptrdiff_t>(); left > 0; --left) {
    timeline.step_begins.push_back(read_time(reader));
  }
  for (auto& peak : timeline.peak_bytes) peak = reader.number<std::int64_t>();
  timeline.peak_total = reader.number<std::int64_t>();
  return timeline;
}

}  // namespace

std::vector<RankTimeline> gather_timelines(ProcessGroup& group, const RankTimeline& own) {
  std::vector<RankTimeline> timelines;
  for (const auto& bytes : gather_bytes(group, bytes_of(own), {.label = "timelines"})) {
    timelines.push_back(timeline_of(bytes));
  }
  return timelines;
}

}  // namespace moegrad
