// SPDX-License-Identifier: Apache-2.0
// The thread that counts the time of deadlines, and what happens when a rank never returns.
#include <unistd.h>

#include <algorithm>
#include <iomanip>
#include <sstream>
#include <system_error>
#include <utility>

#include "framework/distributed/threads/thread_hub.h"
#include "framework/runtime/log.h"
#include "framework/runtime/rank_context.h"

namespace moegrad {
namespace {

using std::chrono::milliseconds;

// Short compared with the deadline, and so short that a stop of the process adds next to nothing.
CollectiveClock::duration tick_of(milliseconds deadline) {
  constexpr CollectiveClock::duration kShortest = milliseconds(1), kLongest = milliseconds(10);
  return std::clamp<CollectiveClock::duration>(deadline / 20, kShortest, kLongest);
}

std::string in_seconds(CollectiveClock::duration time) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << std::chrono::duration<double>(time).count() << " s";
  return text.str();
}

}  // namespace

void ThreadHub::watch(LogLevel log_level) {
  RankContext context({.log_level = log_level});
  const RankContextGuard guard(context);
  const auto tick = tick_of(options_.deadline);
  RunningClock clock(CollectiveClock::now(), tick);
  Lock lock(mutex_);
  while (!unwatched_.wait_for(lock, tick, [this] { return joined_; })) {
    const auto now = CollectiveClock::now();
    const auto passed = clock.advance(now);
    running_ = clock.elapsed();
    for (const auto& group : groups_) {
      for (const auto& [key, channel] : group->channels) {
        if (channel->arrived == 0) continue;
        if (is_excused(*group, *channel)) channel->expires += passed;
        if (channel->expires <= running_) wake_ranks(*channel);
      }
    }
    if (!failure_.empty()) watch_the_stuck(lock, passed);
    warn_of_excuses(lock, now);
  }
}

bool ThreadHub::is_excused(const GroupState& group, const Channel& channel) {
  if (channel.met()) return false;  // the thread that executes steps uses no disk
  for (std::size_t slot = 0; slot < channel.size(); ++slot) {
    if (channel.seats[slot] != nullptr) continue;
    for (const auto& excuse : rank_of(channel, slot).excuses) {
      if (excuse.group == world_.get() || excuse.group == &group) return true;
    }
  }
  return false;
}

std::shared_ptr<const void> ThreadHub::excuse(const std::shared_ptr<ThreadHub>& self,
                                              const GroupState& group, int rank, std::string what) {
  auto& excuses = self->ranks_[static_cast<std::size_t>(rank)]->excuses;
  const std::lock_guard lock(self->mutex_);
  const bool within = std::ranges::any_of(
      excuses, [&](const auto& outer) { return outer.group == &group && !outer.what.empty(); });
  const auto now = CollectiveClock::now();
  excuses.push_back({.group = &group,
                     .what = within ? "" : std::move(what),
                     .since = now,
                     .warns_at = now + self->options_.deadline});
  return {nullptr, [self, rank, &excuses, own = std::prev(excuses.end())](std::nullptr_t) {
            std::string warning;
            {
              const std::lock_guard ending(self->mutex_);
              const auto time = CollectiveClock::now() - own->since;
              if (!own->what.empty() && time >= self->options_.deadline) {
                warning =
                    "rank " + std::to_string(rank) + ": " + own->what + " took " + in_seconds(time);
              }
              excuses.erase(own);
            }
            if (!warning.empty()) log(LogLevel::kWarning, warning);
          }};
}

void ThreadHub::warn_of_excuses(Lock& lock, CollectiveClock::time_point now) {
  std::vector<std::string> warnings;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    for (auto& excuse : ranks_[rank]->excuses) {
      if (excuse.what.empty() || now < excuse.warns_at) continue;
      excuse.warns_at = now + options_.deadline;
      warnings.push_back("rank " + std::to_string(rank) + ": " + excuse.what + " has taken " +
                         in_seconds(now - excuse.since) + " and goes on");
    }
  }
  if (warnings.empty()) return;
  lock.unlock();
  for (const auto& warning : warnings) log(LogLevel::kWarning, warning);
  lock.lock();
}

void ThreadHub::watch_the_stuck(Lock& lock, CollectiveClock::duration passed) {
  since_failure_ += passed;
  const auto patience = options_.exit_after.value_or(options_.deadline);
  if (reported_stuck_ || since_failure_ < patience) return;
  std::vector<int> stuck;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    const bool serving = stopped_ && !ranks_[rank]->served;
    if (!ranks_[rank]->left || serving) stuck.push_back(static_cast<int>(rank));
  }
  if (stuck.empty()) return;
  reported_stuck_ = true;
  std::ostringstream text;
  text << "launch: " << name_ranks(stuck) << (stuck.size() == 1 ? " has" : " have")
       << " not returned " << patience.count() << " ms after a failure, "
       << (options_.exit_after ? "the process ends" : "launch() waits")
       << "; the failure: " << failure_;
  lock.unlock();
  if (options_.exit_after) {
    // Must happen whatever blocks this thread: a full pipe, or a lock that the stuck rank holds.
    try {
      std::thread([] {
        std::this_thread::sleep_for(std::chrono::seconds(2));
        _exit(1);
      }).detach();
    } catch (const std::system_error&) {
      _exit(1);
    }
  }
  report_failure();
  log(LogLevel::kError, text.str());
  if (options_.exit_after) _exit(1);
  lock.lock();
}

}  // namespace moegrad
