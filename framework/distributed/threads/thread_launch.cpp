// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/threads/thread_launch.h"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "framework/runtime/be_scheduled_promptly.h"
#include "framework/runtime/error.h"
#include "framework/runtime/rank_context.h"

namespace moegrad {
namespace {

using std::chrono::milliseconds;

// Short against the deadline.
CollectiveClock::duration tick_of(milliseconds deadline) {
  constexpr CollectiveClock::duration kShortest = milliseconds(1), kLongest = milliseconds(10);
  return std::clamp<CollectiveClock::duration>(deadline / 20, kShortest, kLongest);
}

// A thread with nothing to do looks again after so long.
constexpr CollectiveClock::duration kIdle = std::chrono::seconds(1);
// After a failure, when others end what it waits for.
constexpr CollectiveClock::duration kNap = milliseconds(5);

}  // namespace

ThreadLaunch::ThreadLaunch(int world_size, LaunchOptions options)
    : state_(std::make_shared<LaunchState>("launch", std::move(options), world_size)),
      ranks_(std::make_shared<ThreadRanks>(static_cast<std::size_t>(world_size))) {
  for (int rank = 0; rank < world_size; ++rank) {
    engines_.push_back(
        std::make_shared<Engine>(state_, rank, std::make_unique<ThreadTransport>(ranks_, rank)));
  }
}

void ThreadLaunch::start(LogLevel log_level) {
  for (std::size_t rank = 0; rank < engines_.size(); ++rank) {
    try {
      threads_.emplace_back([this, rank] { serve(rank); });
    } catch (const std::system_error& error) {
      throw too_few_threads("launch", "threads for communication", engines_.size(), rank, error);
    }
  }
  try {
    watcher_ = std::thread([this, log_level] { watch(log_level); });
  } catch (const std::system_error& error) {
    throw too_few_threads("launch", "thread that watches deadlines", 1, 0, error);
  }
}

void ThreadLaunch::stop() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopped = true;
    for (const auto& engine : engines_) engine->transport().wake_own();
  }
  for (auto& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
  {
    const std::lock_guard lock(state_->mutex);
    joined_ = true;
  }
  unwatched_.notify_all();
  if (watcher_.joinable()) watcher_.join();
}

void ThreadLaunch::serve(std::size_t rank) {
  be_scheduled_promptly();
  auto& own = ranks_->ranks[rank];
  auto& engine = *engines_[rank];
  EngineLock lock(state_->mutex);
  engine.set_serves(true);
  while (true) {
    own.woken = false;
    own.sleeps_until = CollectiveClock::time_point::max();
    const auto activity = engine.poll(lock, /*works=*/true);
    state_->carry_on(lock);
    if (activity.progress) continue;
    if (state_->stopped && !engine.has_pending()) break;
    const auto longest = activity.waits && engine.has_failed() ? kNap : kIdle;
    const auto until =
        std::min({own.sleeps_until, activity.wake_at, CollectiveClock::now() + longest});
    own.sleeps_until = until;
    if (until > CollectiveClock::now()) own.wakes.wait_until(lock, until);
  }
  engine.set_serves(false);
}

void ThreadLaunch::watch(LogLevel log_level) {
  RankContext context({.log_level = log_level});
  const RankContextGuard guard(context);
  const auto tick = tick_of(state_->options.deadline);
  EngineLock lock(state_->mutex);
  while (!unwatched_.wait_for(lock, tick, [this] { return joined_; })) {
    const auto now = CollectiveClock::now();
    state_->advance(now);
    state_->watch(lock, now);
  }
}

}  // namespace moegrad
