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
// A rank's recorder, RankContext::current().spans(), records what the rank did and when. It is off
// until start(). Until then each point that could record costs about 40 instructions: it looks up
// the rank's context and loads a relaxed atomic. The library records these spans:
//
//     level 0   phases: forward (the outermost module call), backward (the outermost one),
//               optimizer (Optimizer::step)
//     level 1   also module calls, forward and backward, by path; collectives; waits for them
//     level 2   also every Function, forward and backward, by name
//
// A program that computes elsewhere, such as its loss, must put that into a phase with its own
// SpanGuard. Otherwise levels 0 and 1 do not count it as compute.
//
// A collective's span is on the lane of its queue. It begins when all ranks have joined the
// collective (the link starts) and ends with the collective. It is added when the rank's own thread
// sees the end: in the Work's wait() or test(), or when the Work goes out of scope. A failed
// collective has no span. A wait is a span on the compute lane, during which the rank's own thread
// was blocked by a collective. So communication costs nothing during the spans of the compute and
// optimizer lanes, minus the waits; see overlap.h. write_trace() shows all spans.

/// Where a span is drawn: the lanes of one rank.
enum class Lane : std::uint8_t { kCompute, kGather, kReduce, kOptimizer, kCollective };
inline constexpr std::size_t kLanes = 5;

/// What a span shows; see Note [Spans].
enum class SpanKind : std::uint8_t { kPhase, kModule, kCollective, kWait, kFunction };

std::string_view to_string(Lane lane);
std::string_view to_string(SpanKind kind);

/// The lowest recording level at which spans of this kind are kept.
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
  /// in a collective. Time spent waiting for others, for a modelled link or for a core is not
  /// included. Zero for other kinds.
  std::chrono::nanoseconds busy{0};
  // For collectives only:
  /// The bytes that the rank which receives most receives from the others; the same on all ranks.
  /// A LinkModel takes its time from it. all_reduce counts as a reduce-scatter and an all-gather.
  std::int64_t bytes = 0;
  std::string group = {};      // its name
  std::int64_t sequence = -1;  // in its queue of its group
};

/// CPU time of the calling thread so far.
std::chrono::nanoseconds thread_cpu_time();

/// The spans of one rank in a ring buffer, which keeps the newest. The rank's compute thread adds
/// spans; all other functions may be called from any thread.
class SpanRecorder {
 public:
  /// About 10 MB of spans when full: thousands of steps at level 0, tens at level 2.
  static constexpr std::size_t kDefaultCapacity = std::size_t{1} << 16;

  /// Forgets what was recorded and records from now on. ValueError unless 0 <= level <= 2 and
  /// capacity > 0. Call it between steps: a phase that is already running is not recorded.
  void start(int level, std::size_t capacity = kDefaultCapacity);
  /// Stops recording; the spans stay.
  void stop() { level_.store(-1, std::memory_order_relaxed); }

  bool records(SpanKind kind) const {
    return level_.load(std::memory_order_relaxed) >= level_of(kind);
  }

  void add(Span span);
  /// The spans that ended at `since` or later, in the order in which they were added.
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

/// Records a span of the current rank from here to the end of the scope. The parts form its name;
/// they are joined only if the recorder is on. A phase within a phase is not recorded.
class [[nodiscard]] SpanGuard {
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
