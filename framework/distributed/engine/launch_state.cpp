// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/engine/launch_state.h"

#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "framework/distributed/engine/engine.h"
#include "framework/distributed/exit_soon.h"
#include "framework/runtime/log.h"

namespace moegrad {
namespace {

using std::chrono::milliseconds;

// So short that a stop of the process adds next to nothing to the running time.
constexpr CollectiveClock::duration kLongestTick = milliseconds(10);

}  // namespace

LaunchState::LaunchState(std::string launch_name, LaunchOptions launch_options, int ranks)
    : name(std::move(launch_name)),
      options(std::move(launch_options)),
      world_size(ranks),
      clock_(CollectiveClock::now(), kLongestTick),
      histories_(static_cast<std::size_t>(ranks)) {}

void LaunchState::fail(Failure failure) {
  if (failure_) return;
  const auto report =
      failure.origin.empty() ? failure.cause : failure.origin + ": " + failure.cause;
  failure_text_ = failure.origin.empty() ? failure.cause : "aborted by " + report;
  failure_ = std::move(failure);
  failed_at_ = running();
  for (auto* const engine : engines) {
    histories_[static_cast<std::size_t>(engine->rank())] = engine->history();
    engine->mark_failed();
  }
  failed_ = true;
  for (auto* const engine : engines) engine->transport().wake_own();
}

void LaunchState::set_history(int rank, std::vector<HistoryLine> lines) {
  histories_[static_cast<std::size_t>(rank)] = std::move(lines);
}

bool LaunchState::has_rank_0() const {
  return std::ranges::any_of(engines, [](const Engine* engine) { return engine->rank() == 0; });
}

// Where ranks are processes, the one with rank 0 has what the others have sent it, which may not be
// all, and the others have their own alone.
std::string LaunchState::history_report() const {
  std::vector<std::vector<HistoryLine>> known;
  std::vector<int> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    const auto& lines = histories_[static_cast<std::size_t>(rank)];
    if (!lines && !has_rank_0()) continue;
    known.push_back(lines ? *lines : std::vector{HistoryLine{.state = "not heard of"}});
    ranks.push_back(rank);
  }
  return "\nlast operations of " + (has_rank_0() ? "each rank" : name_ranks(ranks)) + ":\n" +
         format_history(known, ranks);
}

void LaunchState::report_failure() {
  std::string report;
  bool in_detail = false;
  {
    const std::lock_guard lock(mutex);
    if (!failure_ || std::exchange(reported_, true)) return;
    report = failure_->origin.empty() ? failure_->cause : failure_->origin + ": " + failure_->cause;
    report += history_report();
    in_detail = failure_->rank_threw || !has_rank_0();
  }
  if (options.on_failure) return options.on_failure(report);
  log(in_detail ? LogLevel::kDebug : LogLevel::kError, report);
}

void LaunchState::carry_on(EngineLock& lock) {
  for (bool progress = true; progress;) {
    progress = false;
    for (auto* const engine : engines) {
      if (!engine->transport().take_wake()) continue;
      progress = true;
      const auto activity = engine->poll(lock, /*works=*/false);
      const bool at_once = activity.left_work || stopped;
      engine->transport().sleep_until(at_once ? CollectiveClock::time_point::min()
                                              : activity.wake_at);
    }
  }
}

void LaunchState::watch(EngineLock& lock, CollectiveClock::time_point now) {
  if (now >= warns_at_) {
    warns_at_ = now + kLongestTick;
    std::vector<std::string> warnings;
    for (auto* const engine : engines) engine->excuses().warn(now, warnings);
    if (!warnings.empty()) {
      lock.unlock();
      for (const auto& warning : warnings) log(LogLevel::kWarning, warning);
      lock.lock();
    }
  }
  if (failed_) watch_the_stuck(lock);
}

// A body that does not return keeps its process from ending.
void LaunchState::watch_the_stuck(EngineLock& lock) {
  const auto patience = options.exit_after.value_or(options.deadline);
  if (reported_stuck_ || running() - failed_at_ < patience) return;
  std::vector<int> stuck;
  for (const auto* engine : engines) {
    if (engine->is_stuck()) stuck.push_back(engine->rank());
  }
  if (stuck.empty()) return;
  reported_stuck_ = true;
  std::ostringstream text;
  text << name << ": " << name_ranks(stuck) << (stuck.size() == 1 ? " has" : " have")
       << " not returned " << patience.count() << " ms after a failure, "
       << (options.exit_after ? "the process ends" : name + "() waits")
       << "; the failure: " << failure_text_;
  lock.unlock();
  if (options.exit_after) exit_soon();
  report_failure();
  log(LogLevel::kError, text.str());
  if (options.exit_after) _exit(1);
  lock.lock();
}

}  // namespace moegrad
