// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/span.h"

#include <ctime>
#include <utility>

#include "framework/runtime/error.h"
#include "framework/runtime/rank_context.h"

namespace moegrad {

std::string_view to_string(Lane lane) {
  constexpr std::string_view kNames[kLanes] = {"compute", "gather", "reduce", "optimizer",
                                               "collective"};
  return kNames[static_cast<std::size_t>(lane)];
}

std::string_view to_string(SpanKind kind) {
  constexpr std::string_view kNames[] = {"phase", "module", "collective", "wait", "function"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::chrono::nanoseconds thread_cpu_time() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

void SpanRecorder::start(int level, std::size_t capacity) {
  check<ValueError>(0 <= level && level <= 2, "spans: level must be 0, 1 or 2, got ", level);
  check<ValueError>(capacity > 0, "spans: capacity must be positive, got 0");
  {
    const std::lock_guard lock(mutex_);
    capacity_ = capacity;
    ring_.clear();
    oldest_ = 0;
    dropped_ = 0;
  }
  level_.store(level, std::memory_order_relaxed);
}

void SpanRecorder::add(Span span) {
  const std::lock_guard lock(mutex_);
  if (ring_.size() < capacity_) {
    ring_.push_back(std::move(span));
    return;
  }
  ring_[oldest_] = std::move(span);
  oldest_ = (oldest_ + 1) % capacity_;
  ++dropped_;
}

std::vector<Span> SpanRecorder::spans(SpanClock::time_point since) const {
  const std::lock_guard lock(mutex_);
  std::vector<Span> spans;
  for (std::size_t i = 0; i < ring_.size(); ++i) {
    const Span& span = ring_[(oldest_ + i) % ring_.size()];
    if (span.end >= since) spans.push_back(span);
  }
  return spans;
}

std::int64_t SpanRecorder::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

bool SpanGuard::open(SpanKind kind) {
  auto& recorder = RankContext::current().spans();
  if (!recorder.records(kind)) return false;
  if (kind == SpanKind::kPhase && recorder.in_phase_.exchange(true)) return false;
  recorder_ = &recorder;
  return true;
}

void SpanGuard::begin(SpanKind kind, Lane lane, std::string name) {
  auto& span = span_.emplace();
  span.name = std::move(name);
  span.kind = kind;
  span.lane = lane;
  // Starts at minus the CPU time so far; the end of the span adds the CPU time at the end.
  if (kind == SpanKind::kPhase) span.busy = -thread_cpu_time();
  span.begin = SpanClock::now();
}

SpanGuard::~SpanGuard() {
  if (!span_) return;
  span_->end = SpanClock::now();
  if (span_->kind == SpanKind::kPhase) {
    span_->busy += thread_cpu_time();
    recorder_->in_phase_ = false;
  }
  recorder_->add(std::move(*span_));
}

}  // namespace moegrad
