// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/work.h"

#include <string>
#include <utility>

#include "framework/runtime/rank_context.h"

namespace moegrad {
namespace {

Lane lane_of(const CollectiveRequest& request) {
  if (request.queue == CollectiveQueue::kGather) return Lane::kGather;
  return request.queue == CollectiveQueue::kReduce ? Lane::kReduce : Lane::kCollective;
}

}  // namespace

void Work::count_wait(SpanClock::time_point begin) {
  const std::chrono::nanoseconds time = SpanClock::now() - begin;
  add_wait(time);
  if (traffic_ != nullptr) traffic_->wait += time.count();
}

void Work::wait() {
  const auto begin = SpanClock::now();
  block();
  count_wait(begin);
  record(begin);
  if (const auto thrown = failure()) std::rethrow_exception(thrown);
}

void Work::abandon() {
  try {
    wait();
  } catch (const std::exception&) {
  }
}

void Work::await_end() {
  const auto begin = SpanClock::now();
  block();
  count_wait(begin);
}

bool Work::test() {
  const bool done = has_ended();
  if (done) record(SpanClock::now());
  return done;
}

std::exception_ptr Work::error() { return has_ended() ? failure() : nullptr; }

std::optional<CollectiveTiming> Work::timing() {
  if (!has_ended() || failure() != nullptr) return std::nullopt;
  return times();
}

void Work::drop(const std::function<void()>& release) {
  const auto begin = SpanClock::now();
  release();
  count_wait(begin);
  if (has_ended()) record(begin);
}

// Records a call that has ended, once. The rank's own thread has waited for it since `begin`.
void Work::record(SpanClock::time_point begin) {
  auto* const rank = RankContext::find();
  if (recorded_.exchange(true) || rank == nullptr || failure() != nullptr) return;
  auto& spans = rank->spans();
  const auto timing = times();
  if (timing.ended == SpanClock::time_point()) return;  // it was withdrawn before it began
  rank->work()->add(WorkClass::kCommunication, timing.work);
  rank->counters().messages_to_hosts += timing.host_messages;
  rank->counters().bytes_to_hosts += timing.host_bytes;
  if (!spans.records(SpanKind::kCollective)) return;
  const auto& asked = request();
  Span span = {.name = std::string(to_string(asked.op)),
               .kind = SpanKind::kCollective,
               .lane = lane_of(asked),
               .begin = timing.met,
               .end = timing.ended,
               .busy = timing.busy,
               .bytes = timing.wire_bytes,
               .group = asked.group,
               .sequence = asked.sequence};
  if (!asked.label.empty()) span.name += ' ' + asked.label;
  if (timing.ended > begin) {
    spans.add({.name = "wait for " + span.name,
               .kind = SpanKind::kWait,
               .lane = Lane::kCompute,
               .begin = begin,
               .end = SpanClock::now()});
  }
  spans.add(std::move(span));
}

}  // namespace moegrad
