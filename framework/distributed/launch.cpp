// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/launch.h"

#include <exception>
#include <list>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "framework/distributed/engine/engine_process_group.h"
#include "framework/distributed/threads/thread_launch.h"
#include "framework/runtime/error.h"
#include "framework/runtime/exception_message.h"
#include "framework/runtime/mpi_environment.h"
#include "framework/runtime/thread_state.h"

namespace moegrad {
namespace {

/// The exception that launch() rethrows: the first one. An exception that a rank threw by itself
/// takes precedence over one that only reports another rank's failure.
class FirstFailure {
 public:
  void record(const std::exception_ptr& thrown) {
    const std::lock_guard lock(mutex_);
    try {
      if (thrown != nullptr) std::rethrow_exception(thrown);
    } catch (const AbortedError&) {
      if (consequence_ == nullptr) consequence_ = thrown;
    } catch (...) {
      if (cause_ == nullptr) cause_ = thrown;
    }
  }

  void rethrow() {
    if (cause_ != nullptr) std::rethrow_exception(cause_);
    if (consequence_ != nullptr) std::rethrow_exception(consequence_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr cause_;
  std::exception_ptr consequence_;
};

/// What holds on a rank of what the caller's thread works under.
ThreadState state_of_ranks() {
  const auto& caller = ThreadState::current();
  return {.grad_mode = caller.grad_mode, .anomaly_detection = caller.anomaly_detection};
}

}  // namespace

void launch(int world_size, const std::function<void(RankContext&)>& body,
            const LaunchOptions& options) {
  check<ValueError>(world_size >= 1, "launch: world_size must be at least 1, got ", world_size);
  check_launch_options("launch", options);
  const auto started = mpi_environment();
  check(!started || started->size == 1,
        "launch: its ranks are threads of one process, but mpirun has started this program as ",
        started ? started->size : 0,
        " processes; link moegrad::mpi and call launch_mpi(), or start the program without mpirun");
  const auto* const caller = RankContext::find();  // null: a thread that belongs to no rank
  const auto log_level = caller == nullptr ? RankContext::Options().log_level : caller->log_level();
  const auto state = state_of_ranks();
  ThreadLaunch ranks(world_size, options);
  ranks.start(log_level);
  std::list<LastOperations::SignalGuard> signal_guards;
  for (int rank = 0; rank < world_size; ++rank) {
    signal_guards.emplace_back(ranks.engine(rank)->last_operations());
  }
  FirstFailure failure;
  {
    std::vector<std::jthread> threads;  // joined when it goes out of scope, also by an exception
    try {
      for (int rank = 0; rank < world_size; ++rank) {
        threads.emplace_back([&, rank] {
          const ThreadStateGuard state_guard(state);
          failure.record(run_rank(ranks.engine(rank),
                                  {.launch = ranks.state(), .log_level = log_level}, body));
        });
      }
    } catch (const std::system_error& error) {
      const auto failed =
          too_few_threads("launch", "threads for ranks", static_cast<std::size_t>(world_size),
                          threads.size(), error);
      ranks.engine(static_cast<int>(threads.size()))->body_failed(failed.what());
      throw failed;
    } catch (...) {
      ranks.engine(static_cast<int>(threads.size()))->body_failed(message_of_exception());
      throw;
    }
  }
  ranks.stop();
  ranks.state()->report_failure();  // unless a rank has
  failure.rethrow();
}

}  // namespace moegrad
