// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/threads/thread_hub.h"

#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <system_error>
#include <utility>

#include "framework/distributed/backend_work.h"
#include "framework/distributed/collective_clock.h"
#include "framework/distributed/exit_soon.h"
#include "framework/runtime/error.h"
#include "framework/runtime/rank_context.h"

namespace moegrad {
namespace {

using std::chrono::milliseconds;

thread_local bool inside_step = false;  // this thread is running a consumer

// Short against the deadline, and so short that a stop of the process adds next to nothing.
CollectiveClock::duration tick_of(milliseconds deadline) {
  constexpr CollectiveClock::duration kShortest = milliseconds(1), kLongest = milliseconds(10);
  return std::clamp<CollectiveClock::duration>(deadline / 20, kShortest, kLongest);
}

}  // namespace

ThreadHub::ThreadHub(int world_size, LaunchOptions options)
    : meetings_(world_size, std::move(options)), servers_(static_cast<std::size_t>(world_size)) {}

ThreadHub::~ThreadHub() { stop(); }

void ThreadHub::start(LogLevel log_level) {
  for (std::size_t i = 0; i < servers_.size(); ++i) {
    try {
      servers_[i].thread = std::thread([this, i] { serve(i); });
    } catch (const std::system_error& error) {
      throw too_few_threads("launch", "threads for communication", servers_.size(), i, error);
    }
  }
  try {
    watcher_ = std::thread([this, log_level] { watch(log_level); });
  } catch (const std::system_error& error) {
    throw too_few_threads("launch", "thread that watches deadlines", 1, 0, error);
  }
}

void ThreadHub::stop() {
  {
    const std::lock_guard lock(mutex_);
    meetings_.stopped = true;
  }
  for (std::size_t i = 0; i < servers_.size(); ++i) {
    meetings_.ranks[i]->wake.notify_all();
    if (servers_[i].thread.joinable()) servers_[i].thread.join();
  }
  {
    const std::lock_guard lock(mutex_);
    joined_ = true;
  }
  unwatched_.notify_all();
  if (watcher_.joinable()) watcher_.join();
}

std::shared_ptr<GroupState> ThreadHub::join_group(const std::string& name, std::vector<int> ranks) {
  const std::lock_guard lock(mutex_);
  return meetings_.join_group(name, std::move(ranks));
}

void ThreadHub::post(GroupState& group, const ChannelKey& key, std::size_t slot,
                     const std::shared_ptr<ThreadCall>& call) {
  Lock lock(mutex_);
  Channel& channel = meetings_.channel_of(group, key);
  call->channel = &channel;
  call->slot = slot;
  meetings_.fail_by_withdrawal(channel.ranks[slot]);
  if (!meetings_.failure.empty()) {
    lock.unlock();
    report_failure();
    throw AbortedError(describe(*call) + ": " + meetings_.failure);
  }
  check<CollectiveError>(!meetings_.stopped, "group ", group.name, ": the launch has ended");
  call->number = meetings_.rank_of(channel, slot).history.add(*call);
  channel.pending[slot].push_back(call);
  if (!call->fault.empty()) {
    meetings_.fail(call->fault, call.get());
    lock.unlock();
    report_failure();
    throw CollectiveError(call->error);
  }
  call->joins_at = CollectiveClock::now() + meetings_.jitter(*call, 0);
  if (channel.pending[slot].size() == 1) meetings_.take_seat(channel, slot);
  if (channel.size() > 1) return;
  // A single rank needs no second thread.
  std::vector<std::byte> scratch;
  auto wake_at = CollectiveClock::time_point::max();
  while (poll(lock, channel, slot, scratch, wake_at)) {
  }
}

void ThreadHub::serve(std::size_t index) {
  auto& rank = *meetings_.ranks[index];
  std::vector<std::byte> scratch;
  Lock lock(mutex_);
  while (true) {
    auto wake_at = CollectiveClock::time_point::max();
    bool busy = false;
    bool pending = false;
    for (std::size_t i = 0; i < rank.channels.size(); ++i) {  // may grow while a step runs
      const auto [channel, slot] = rank.channels[i];
      busy = poll(lock, *channel, slot, scratch, wake_at) || busy;
      pending = pending || !channel->pending[slot].empty();
    }
    if (busy) continue;
    if (meetings_.stopped && !pending) {
      servers_[index].served = true;
      return;
    }
    if (wake_at == CollectiveClock::time_point::max()) {
      rank.wake.wait(lock);  // no clock reaches that
    } else {
      rank.wake.wait_until(lock, wake_at);
    }
  }
}

bool ThreadHub::poll(Lock& lock, Channel& channel, std::size_t slot,
                     std::vector<std::byte>& scratch, CollectiveClock::time_point& wake_at) {
  const auto is_due = [&wake_at, now = CollectiveClock::now()](CollectiveClock::time_point time) {
    if (now < time) wake_at = std::min(wake_at, time);
    return now >= time;
  };
  ThreadCall* const call = channel.seats[slot];
  if (call == nullptr) {  // its turn, but late by jitter
    const auto& queue = channel.pending[slot];
    if (queue.empty() || meetings_.rank_of(channel, slot).withdrawn.has_value()) return false;
    if (!is_due(queue.front()->joins_at)) return false;
    meetings_.take_seat(channel, slot);
    return true;
  }
  if (!channel.met()) {
    if (meetings_.running < channel.expires) return false;
    meetings_.fail_to_join(channel);
    return true;
  }
  if (!is_due(std::max(channel.ready_at, call->begins_at))) return false;
  if (channel.step == num_steps(call->op)) {  // a barrier on a modelled link
    meetings_.conclude(channel);
    return true;
  }
  if (call->steps_begun > channel.step || !meetings_.failure.empty()) {
    if (meetings_.running >= channel.expires) meetings_.give_up_step(channel);
    return false;
  }
  execute_step(lock, channel, slot, scratch);
  return true;
}

void ThreadHub::execute_step(Lock& lock, Channel& channel, std::size_t slot,
                             std::vector<std::byte>& scratch) {
  ThreadCall& call = *channel.seats[slot];
  ++call.steps_begun;
  ++channel.running;
  call.inside_step = true;
  std::exception_ptr thrown;
  std::string reason;
  ByteParts inputs;
  // A consumer may outlast the others' calls.
  if (call.has_consumer) inputs = inputs_of(channel.seats, slot);
  lock.unlock();
  const auto cpu_before = thread_cpu_time();
  const bool outer = std::exchange(inside_step, true);
  try {
    if (call.has_consumer) {
      call.consume(inputs);
    } else {
      run_step(channel.seats, slot, call.steps_begun - 1, scratch);
    }
  } catch (...) {
    thrown = std::current_exception();
    reason = what_of(thrown);
  }
  inside_step = outer;
  const auto cpu_time = thread_cpu_time() - cpu_before;
  lock.lock();
  call.busy += cpu_time;
  call.work += CollectiveClock::now() - channel.step_opened;
  if (thrown != nullptr) {
    call.thrown = std::move(thrown);
    meetings_.fail_by_exception(channel.ranks[slot], reason);
  }
  call.inside_step = false;
  --channel.running;
  if (!meetings_.failure.empty()) {
    // Where the consumer was given up, the others have ended.
    if (channel.running == 0 || !channel.met()) meetings_.end_failed_calls(channel);
  } else if (++channel.ended == channel.size()) {
    channel.ended = 0;
    ++channel.step;
    meetings_.advance(channel);
  }
}

void ThreadHub::wait(ThreadCall& call) {
  // What the consumer holds, tensors perhaps, ends here, on the rank's own thread and in its own
  // time, and outside the lock.
  GatherConsumer consumer;
  Lock lock(mutex_);
  if (inside_step && !call.done) {
    throw CollectiveError(describe(call) +
                          ": a consumer cannot wait for a collective, it holds up the thread that "
                          "executes them");
  }
  call.finished.wait(lock, [&] { return call.done; });
  consumer.swap(call.consume);
  lock.unlock();
  if (call.thrown != nullptr || !call.error.empty()) report_failure();
}

std::exception_ptr ThreadHub::failure(const ThreadCall& call) {
  const std::lock_guard lock(mutex_);
  if (call.thrown != nullptr) return call.thrown;
  if (call.error.empty()) return nullptr;
  if (call.aborted) return std::make_exception_ptr(AbortedError(call.error));
  return std::make_exception_ptr(CollectiveError(call.error));
}

bool ThreadHub::test(const ThreadCall& call) {
  const std::lock_guard lock(mutex_);
  return call.done;
}

void ThreadHub::release(ThreadCall& call, bool unwinding) noexcept {
  GatherConsumer consumer;
  Lock lock(mutex_);
  if (inside_step) return;
  if (unwinding && !call.done && meetings_.withdraw(call)) return;
  call.finished.wait(lock, [&] { return call.done; });
  consumer.swap(call.consume);
  lock.unlock();
}

void ThreadHub::rank_failed(int rank, const std::string& what) {
  const std::lock_guard lock(mutex_);
  meetings_.fail_by_exception(rank, what);
}

void ThreadHub::rank_left(int rank) {
  const std::lock_guard lock(mutex_);
  meetings_.leave(rank);
}

std::shared_ptr<const void> ThreadHub::excuse(const std::shared_ptr<ThreadHub>& self,
                                              const GroupState& group, int rank, std::string what) {
  auto& excuses = self->meetings_.ranks[static_cast<std::size_t>(rank)]->excuses;
  const std::lock_guard lock(self->mutex_);
  return {nullptr, [self, &excuses, own = excuses.begin(&group, std::move(what))](std::nullptr_t) {
            std::string warning;
            {
              const std::lock_guard ending(self->mutex_);
              warning = excuses.end(own);
            }
            if (!warning.empty()) log(LogLevel::kWarning, warning);
          }};
}

void ThreadHub::report_failure() {
  std::string report;
  {
    const std::lock_guard lock(mutex_);
    report.swap(meetings_.report);
  }
  if (report.empty()) return;
  if (meetings_.options.on_failure) return meetings_.options.on_failure(report);
  log(meetings_.rank_threw ? LogLevel::kDebug : LogLevel::kError, report);
}

void ThreadHub::watch(LogLevel log_level) {
  RankContext context({.log_level = log_level});
  const RankContextGuard guard(context);
  const auto tick = tick_of(meetings_.options.deadline);
  RunningClock clock(CollectiveClock::now(), tick);
  Lock lock(mutex_);
  while (!unwatched_.wait_for(lock, tick, [this] { return joined_; })) {
    const auto now = CollectiveClock::now();
    const auto passed = clock.advance(now);
    meetings_.running = clock.elapsed();
    for (const auto& group : meetings_.groups) {
      for (const auto& [key, channel] : group->channels) {
        if (channel->arrived == 0) continue;
        if (meetings_.is_excused(*group, *channel)) channel->expires += passed;
        if (channel->expires <= meetings_.running) meetings_.wake_ranks(*channel);
      }
    }
    if (!meetings_.failure.empty()) watch_the_stuck(lock, passed);
    warn_of_excuses(lock, now);
  }
}

void ThreadHub::warn_of_excuses(Lock& lock, CollectiveClock::time_point now) {
  std::vector<std::string> warnings;
  for (const auto& rank : meetings_.ranks) rank->excuses.warn(now, warnings);
  if (warnings.empty()) return;
  lock.unlock();
  for (const auto& warning : warnings) log(LogLevel::kWarning, warning);
  lock.lock();
}

void ThreadHub::watch_the_stuck(Lock& lock, CollectiveClock::duration passed) {
  since_failure_ += passed;
  const auto patience = meetings_.options.exit_after.value_or(meetings_.options.deadline);
  if (reported_stuck_ || since_failure_ < patience) return;
  std::vector<int> stuck;
  for (std::size_t rank = 0; rank < meetings_.ranks.size(); ++rank) {
    const bool serving = meetings_.stopped && !servers_[rank].served;
    if (!meetings_.ranks[rank]->left || serving) stuck.push_back(static_cast<int>(rank));
  }
  if (stuck.empty()) return;
  reported_stuck_ = true;
  std::ostringstream text;
  text << "launch: " << name_ranks(stuck) << (stuck.size() == 1 ? " has" : " have")
       << " not returned " << patience.count() << " ms after a failure, "
       << (meetings_.options.exit_after ? "the process ends" : "launch() waits")
       << "; the failure: " << meetings_.failure;
  lock.unlock();
  if (meetings_.options.exit_after) exit_soon();
  report_failure();
  log(LogLevel::kError, text.str());
  if (meetings_.options.exit_after) _exit(1);
  lock.lock();
}

}  // namespace moegrad
