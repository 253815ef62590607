// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/gather_timelines.h"

#include "framework/distributed/collectives.h"
#include "framework/runtime/byte_stream.h"

namespace moegrad {

void members(auto& stream, Like<Span> auto& span) {
  stream(span.name, span.kind, span.lane, span.begin, span.end, span.busy, span.bytes, span.group,
         span.sequence);
}

void members(auto& stream, Like<RankTimeline> auto& timeline) {
  stream(timeline.spans, timeline.step_begins, timeline.peak_bytes, timeline.peak_total);
}

std::vector<RankTimeline> gather_timelines(ProcessGroup& group, const RankTimeline& own) {
  std::vector<RankTimeline> timelines;
  for (const auto& bytes : gather_bytes(group, to_bytes(own), {.label = "timelines"})) {
    ByteReader{bytes}(timelines.emplace_back());
  }
  return timelines;
}

}  // namespace moegrad
