// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace moegrad {

// Note [Spans]
// A rank's recorder, RankContext::current().spans(), notes what the rank did and when. It is off
// until start(); a place that could record costs about 40 instructions until then: it looks up the
// rank's context and loads a relaxed atomic. What comes by itself:
//
//     level 0   phases: forward (the outermost module call), backward (the outermost one),
//               optimizer (Optimizer::step)
//     level 1   and module calls, forward and backward, by path; collectives; waits for them
//     level 2   and every Function, forward and backward, by name
//
// What a program computes elsewhere, such as its loss, it puts into a phase by a SpanGuard of its
// own; otherwise levels 0 and 1 do not count it as compute.
//
// A collective's span is on the lane of its queue and reaches from the moment when all ranks have
// joined it (the link starts) to its end. It is added when the rank's own thread learns of the end:
// by the Work's wait() or test(), or as the Work goes out of scope; a failed collective leaves
// none. A wait is a span on the compute lane: where the rank's own thread stood still for a
// collective. So what the compute and optimizer lanes show, less the waits, is time in which
// communication costs nothing; see overlap.h. write_trace() shows it all.

/// Where a span is drawn: the lanes of one rank.
enum class Lane : std::uint8_t { kCompute, kGather, kReduce, kOptimizer, kCollective };
inline constexpr std::size_t kLanes = 5;

/// What a span shows; see Note [Spans].
enum class SpanKind : std::uint8_t { kPhase, kModule, kCollective, kWait, kFunction };

std::string_view to_string(Lane lane);
std::string_view to_string(SpanKind kind);

/// From which recording level on spans of this kind are kept.
constexpr int level_of(SpanKind kind) {
  if (kind == SpanKind::kPhase) return 0;
  return kind == SpanKind::kFunction ? 2 : 1;
}

using SpanClock = std::chrono::steady_clock;

/// From `begin` to `end`, one rank did what `name` says: "forward", "backward model.layers.0.mlp",
/// "all_gather model.layers.3", "wait for all_gather model.layers.3", "backward matmul".
struct Span {
  std::string name = {};
  SpanKind kind = SpanKind::kPhase;
  Lane lane = Lane::kCompute;
  SpanClock::time_point begin = {};
  SpanClock::time_point end = {};
  /// CPU time that the rank itself spent: its compute thread in a phase, its communication thread
  /// in a collective. Waiting for others, for a modelled link or for a core is no part of it. Zero
  /// for other kinds.
  std::chrono::nanoseconds busy{0};
  // Of collectives:
  /// What the rank that receives most receives from the others, the same on all ranks: what a
  /// LinkModel takes its time for. all_reduce counts as a reduce-scatter and an all-gather.
  std::int64_t bytes = 0;
  std::string group = {};      // its name
  std::int64_t sequence = -1;  // in its queue of its group
};

/// CPU time of the calling thread so far.
std::chrono::nanoseconds thread_cpu_time();

/// The spans of one rank, newest kept: a ring buffer. Spans are added by the rank's compute thread;
/// everything else may be called from any thread.
class SpanRecorder {
 public:
  /// About 10 MB of spans when full: thousands of steps at level 0, tens at level 2.
  static constexpr std::size_t kDefaultCapacity = std::size_t{1} << 16;

  /// Forgets what was recorded and records from now on. ValueError unless 0 <= level <= 2 and
  /// capacity > 0. Call it between steps: a phase under way is not recorded.
  void start(int level, std::size_t capacity = kDefaultCapacity);
  /// Stops recording; the spans stay.
  void stop() { level_.store(-1, std::memory_order_relaxed); }

  bool records(SpanKind kind) const {
    return level_.load(std::memory_order_relaxed) >= level_of(kind);
  }

  void add(Span span);
  /// Those that ended at `since` or later, in the order in which they were added.
  std::vector<Span> spans(SpanClock::time_point since = SpanClock::time_point::min()) const;
  /// Spans that newer ones have overwritten since start().
  std::int64_t dropped() const;

 private:
  friend class SpanGuard;

  std::atomic<int> level_{-1};
  std::atomic<bool> in_phase_{false};
  mutable std::mutex mutex_;
  std::size_t capacity_ = kDefaultCapacity;
  std::vector<Span> ring_;
  std::size_t oldest_ = 0;  // position in a full ring
  std::int64_t dropped_ = 0;
};

/// Records a span of the current rank from here to the end of the scope. The parts make up its
/// name, and are put together only when the recorder is on. A phase within a phase is not recorded.
class SpanGuard {
 public:
  template <class... Parts>
  explicit SpanGuard(SpanKind kind, Lane lane, const Parts&... parts) {
    if (!open(kind)) return;
    std::string name;
    (name.append(parts), ...);
    begin(kind, lane, std::move(name));
  }
  ~SpanGuard();
  SpanGuard(const SpanGuard&) = delete;
  SpanGuard& operator=(const SpanGuard&) = delete;

 private:
  bool open(SpanKind kind);
  void begin(SpanKind kind, Lane lane, std::string name);

  SpanRecorder* recorder_ = nullptr;
  std::optional<Span> span_;  // none when nothing is recorded
};

}  // namespace moegrad
