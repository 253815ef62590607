// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "framework/runtime/counters.h"
#include "framework/runtime/cpu_kernels.h"
#include "framework/runtime/log.h"
#include "framework/runtime/span.h"
#include "framework/runtime/thread_pool.h"
#include "framework/runtime/thread_state.h"
#include "framework/runtime/work_time.h"

namespace moegrad {

class Arena;
class ProcessGroup;

/// What belongs to one rank: its memory, its threads, its counters and its process group. Ranks
/// may be threads of one process, so nothing here is global. A thread finds its rank's context
/// through its ThreadState, which RankContextGuard sets. The main thread of a program is rank 0 of
/// 1 without one; another thread belongs to no rank until it gets a guard, its own RankContext's or
/// that of a rank whose work it does.
class RankContext {
 public:
  struct Options {
    int rank = 0;
    int world_size = 1;
    int threads = 1;  // compute threads of this rank, the calling one included
    std::optional<CpuKernels> kernels = std::nullopt;  // by default the fastest
    std::shared_ptr<ProcessGroup> group = nullptr;
    std::shared_ptr<const void> launch = nullptr;
    LogLevel log_level = LogLevel::kInfo;
    /// The rank's totals, if this is the context of another thread of that rank; null: a new one.
    std::shared_ptr<WorkTotals> work = nullptr;
  };

  RankContext();
  explicit RankContext(Options options);
  ~RankContext();
  RankContext(const RankContext&) = delete;
  RankContext& operator=(const RankContext&) = delete;

  /// The context of the calling thread. Error if it belongs to no rank.
  static RankContext& current();
  /// The same; null if it belongs to no rank.
  static RankContext* find();

  int rank() const { return options_.rank; }
  int world_size() const { return options_.world_size; }
  const std::shared_ptr<Arena>& arena() const { return arena_; }
  ThreadPool& pool() { return *pool_; }
  /// Replaces the pool; call between steps, from the compute thread.
  void set_threads(int threads);
  /// The kernels of the rank that the calling thread computes for, also on a thread of its pool.
  static CpuKernels current_kernels();
  /// What products are computed with; no bit depends on it.
  CpuKernels kernels() const { return kernels_; }
  /// Replaces them; call between steps, from the compute thread. ValueError unless available.
  void set_kernels(CpuKernels kernels);
  Counters& counters() { return *counters_; }
  /// For what may outlive the rank, such as a tensor that is being filled.
  const std::shared_ptr<Counters>& shared_counters() const { return counters_; }
  /// What this rank did and when (Note [Spans]); off by default.
  SpanRecorder& spans() { return spans_; }
  /// How long this rank has worked (Note [Slow ranks]).
  const std::shared_ptr<WorkTotals>& work() const { return work_; }
  /// Messages below this level are not printed. May be called from any thread of the rank.
  LogLevel log_level() const { return log_level_; }
  void set_log_level(LogLevel level) { log_level_ = level; }
  /// The group of all ranks; null outside launch().
  const std::shared_ptr<ProcessGroup>& group() const { return options_.group; }
  /// Groups of this rank that comm_handle() has named, by number.
  std::vector<std::weak_ptr<ProcessGroup>>& named_groups() { return named_groups_; }
  /// What the ranks of one launch() share as threads of this process, and no other launch; null
  /// elsewhere.
  const std::shared_ptr<const void>& launch() const { return options_.launch; }

 private:
  Options options_;
  CpuKernels kernels_;
  std::shared_ptr<Arena> arena_;  // shared: a tensor may outlive its rank
  std::unique_ptr<ThreadPool> pool_;
  std::shared_ptr<Counters> counters_ = std::make_shared<Counters>();
  SpanRecorder spans_;
  std::atomic<LogLevel> log_level_;
  std::shared_ptr<WorkTotals> work_;
  std::vector<std::weak_ptr<ProcessGroup>> named_groups_;
};

/// Makes `context` the current thread's until the guard goes out of scope.
class [[nodiscard]] RankContextGuard : public ThreadValueGuard<&ThreadState::rank> {
 public:
  explicit RankContextGuard(RankContext& context) : ThreadValueGuard(&context) {}
};

}  // namespace moegrad
