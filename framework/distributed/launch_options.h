// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "framework/distributed/collective_request.h"
#include "framework/distributed/link_model.h"
#include "framework/runtime/cpu_kernels.h"

namespace moegrad {

/// Random delays that expose code which depends on timing. Each rank joins each collective late,
/// and begins its part of it late, each time by up to `maximum`. The delays block no thread, so the
/// delay of one queue does not delay another.
struct Jitter {
  std::chrono::nanoseconds maximum{0};
  std::uint64_t seed = 0;

  /// Delay number `index` of one rank in one stream of delays, such as a queue of a group. It
  /// depends on its arguments and the seed only, and is uniform in [0, maximum).
  std::chrono::nanoseconds delay(int rank, std::string_view stream, std::int64_t index) const;
};

/// The value that programs set LaunchOptions::exit_after to.
inline constexpr std::chrono::milliseconds kProgramExitsAfter{60'000};

/// How launch() and launch_mpi() run their ranks.
struct LaunchOptions {
  /// Compute threads of each rank, its own included.
  int threads_per_rank = 1;
  /// What the products of each rank are computed with, by default fastest_cpu_kernels(). ValueError
  /// unless available.
  std::optional<CpuKernels> kernels = {};
  /// A collective fails on every rank if not all ranks have joined it after this time, or if a rank
  /// has not executed it this time after all have joined. The delays of `jitter`, the time of
  /// `link` and the time that ProcessGroup::excuse() excuses are added. Time counts only while the
  /// process runs, not while the whole process is stopped, as by SIGSTOP. Over MPI the consumer of
  /// an all-gather has no deadline: it runs on the thread that would look. In (0, 24 h].
  std::chrono::milliseconds deadline{60'000};
  /// A rank that has not returned this time after the first failure is stuck. This is reported, and
  /// the process ends with _exit(1), because a single thread cannot be ended. Programs choose
  /// kProgramExitsAfter.
  ///
  /// By default there is no such time, because a library must not end its user's process: launch()
  /// waits for the rank and reports that after `deadline`. Counted like `deadline`. In (0, 24 h].
  std::optional<std::chrono::milliseconds> exit_after = {};
  /// Models a slower link by sleeping; none by default.
  LinkModel link = {};
  /// Delays collectives at random; none by default. At most 24 h.
  Jitter jitter = {};
  /// Long payloads move in pieces of this size, in bytes; no message over MPI is longer. A multiple
  /// of 64, at most 1 GiB.
  std::size_t piece_bytes = std::size_t{4} << 20;
  /// Which queues go first, in [0, 7]; 0 for those that are not there. Between two pieces, a
  /// payload of a queue of higher priority overtakes. Calls of one queue never do. The same on all
  /// ranks.
  std::map<CollectiveQueue, int> priorities = {};
  /// Looks for NaN in the input of each rank to a reduction. A NaN fails the launch with an error
  /// that names rank and operation. The check reads every input once more.
  bool check_nan = false;
  /// Called once if a collective or a rank fails. It runs on the thread of a rank that ends because
  /// of the failure. If no rank has called it when all ranks have ended, launch() calls it on its
  /// caller's thread. It must not throw.
  ///
  /// `report` is a block of lines: the cause, and the last operations of every rank. By default it
  /// is logged as an error. It is logged as a debug message if launch() rethrows what a rank threw
  /// by itself.
  std::function<void(const std::string& report)> on_failure = {};
  /// Where each rank writes `last_operations.rank3.txt` when the process gets SIGTERM or a
  /// collective fails; empty for nowhere, as is a folder that is not there by then.
  std::string last_operations_folder = {};

  int priority_of(CollectiveQueue queue) const {
    const auto found = priorities.find(queue);
    return found == priorities.end() ? 0 : found->second;
  }
};

/// ValueError `<launch>: <option> must be in ...` where one is out of its range.
void check_launch_options(std::string_view launch, const LaunchOptions& options);

}  // namespace moegrad
