// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "framework/distributed/threads/jitter.h"
#include "framework/distributed/threads/link_model.h"

namespace moegrad {

/// What programs set LaunchOptions::exit_after to.
inline constexpr std::chrono::milliseconds kProgramExitsAfter{60'000};

/// How launch() runs its ranks.
struct LaunchOptions {
  /// Compute threads of each rank, its own included.
  int threads_per_rank = 1;
  /// A collective that not all ranks have joined after this long fails on every rank; so does one
  /// that a rank has not executed this long after all have joined. What `jitter` may delay and what
  /// `link` takes come on top, and what ProcessGroup::excuse() excuses. Time is counted while the
  /// process runs: not while it is stopped as a whole, as by SIGSTOP. In (0, 24 h].
  std::chrono::milliseconds deadline{60'000};
  /// A rank that has not returned this long after the first failure is taken to be stuck: that is
  /// reported, and the process ends by _exit(1), since a thread cannot be ended alone. Programs
  /// choose kProgramExitsAfter. None by default, as a library must not end its user's process:
  /// then launch() waits for the rank and says so after `deadline`. Counted as `deadline` is. In
  /// (0, 24 h].
  std::optional<std::chrono::milliseconds> exit_after = {};
  /// Models a slower link by sleeping; none by default.
  LinkModel link = {};
  /// Delays collectives at random; not by default. At most 24 h.
  Jitter jitter = {};
  /// Looks for NaN in what each rank hands to a reduction, and fails the launch naming rank and
  /// operation. It reads every input once more.
  bool check_nan = false;
  /// Called once if a collective or a rank fails, on the thread of a rank that ends for it or,
  /// where none has called it by then, on launch()'s caller's after all have ended; must not throw.
  /// `report` is a block of lines: the cause, and the last operations of every rank. By
  /// default it is logged as an error; where launch() rethrows what a rank threw by itself, only as
  /// a debug message.
  std::function<void(const std::string& report)> on_failure = {};
};

}  // namespace moegrad
