// SPDX-License-Identifier: Apache-2.0
// The two sides of a posted call: the communication threads that execute it, and the rank's own
// thread that waits for it.
#include <algorithm>
#include <sstream>
#include <system_error>
#include <utility>

#include "framework/distributed/aborted_error.h"
#include "framework/distributed/threads/thread_hub.h"
#include "framework/runtime/too_few_threads.h"

namespace moegrad {
namespace {

thread_local bool inside_step = false;  // this thread is running a consumer

std::string what(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "unknown exception";
  }
}

}  // namespace

void ThreadHub::start(LogLevel log_level) {
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    try {
      ranks_[i]->thread = std::thread([this, i] { serve(*ranks_[i]); });
    } catch (const std::system_error& error) {
      throw too_few_threads("launch", "threads for communication", ranks_.size(), i, error);
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
    stopped_ = true;
  }
  for (const auto& rank : ranks_) {
    rank->wake.notify_all();
    if (rank->thread.joinable()) rank->thread.join();
  }
  {
    const std::lock_guard lock(mutex_);
    joined_ = true;
  }
  unwatched_.notify_all();
  if (watcher_.joinable()) watcher_.join();
}

void ThreadHub::serve(Rank& rank) {
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
    if (stopped_ && !pending) {
      rank.served = true;
      return;
    }
    if (wake_at == CollectiveClock::time_point::max()) {
      rank.wake.wait(lock);  // wake_at is the clock's maximum: never
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
  CollectiveCall* const call = channel.seats[slot];
  if (call == nullptr) {  // its turn, but late by jitter
    const auto& queue = channel.pending[slot];
    if (queue.empty() || rank_of(channel, slot).withdrawn.has_value()) return false;
    if (!is_due(queue.front()->joins_at)) return false;
    take_seat(channel, slot);
    return true;
  }
  if (!channel.met()) {
    if (running_ < channel.expires) return false;
    fail_to_join(channel);
    return true;
  }
  if (!is_due(std::max(channel.ready_at, call->begins_at))) return false;
  if (channel.step == num_steps(call->op)) {  // a barrier on a modelled link
    conclude(channel);
    return true;
  }
  if (call->steps_begun > channel.step || !failure_.empty()) {
    if (running_ >= channel.expires) give_up_step(channel);
    return false;
  }
  execute_step(lock, channel, slot, scratch);
  return true;
}

void ThreadHub::fail_to_join(Channel& channel) {
  std::ostringstream cause;
  cause << "not joined within " << options_.deadline.count() << " ms by "
        << channel.list_ranks(false) << "; waiting: " << channel.list_ranks(true);
  fail(cause.str(), channel.any_seated());
}

void ThreadHub::give_up_step(Channel& channel) {
  const bool consumers = channel.seats.front()->op == CollectiveOp::kAllGather;
  std::ostringstream cause;
  cause << "not executed within " << options_.deadline.count() << " ms by "
        << channel.list_ranks_by_step(false) << "; waiting: " << channel.list_ranks_by_step(true);
  fail(cause.str(), channel.any_seated());
  // A consumer may never return. Other steps end soon, and read the buffers until then.
  if (consumers) end_failed_calls(channel);
}

void ThreadHub::execute_step(Lock& lock, Channel& channel, std::size_t slot,
                             std::vector<std::byte>& scratch) {
  CollectiveCall& call = *channel.seats[slot];
  ++call.steps_begun;
  ++channel.running;
  call.inside_step = true;
  std::exception_ptr thrown;
  std::string reason;
  const bool gathers = call.op == CollectiveOp::kAllGather;
  std::vector<std::span<const std::byte>> inputs;
  if (gathers) inputs = inputs_of(channel.seats);  // a consumer may outlast the others' calls
  lock.unlock();
  const auto cpu_before = thread_cpu_time();
  const bool outer = std::exchange(inside_step, true);
  try {
    if (gathers) {
      call.consume(inputs);
    } else {
      run_step(channel.seats, slot, call.steps_begun - 1, scratch);
    }
  } catch (...) {
    thrown = std::current_exception();
    reason = what(thrown);
  }
  inside_step = outer;
  const auto cpu_time = thread_cpu_time() - cpu_before;
  lock.lock();
  call.busy += cpu_time;
  call.work += CollectiveClock::now() - channel.step_opened;
  if (thrown != nullptr) {
    call.thrown = std::move(thrown);
    fail_by_exception(channel.ranks[slot], reason);
  }
  call.inside_step = false;
  --channel.running;
  if (!failure_.empty()) {
    // If the consumer was given up, the other calls have ended.
    if (channel.running == 0 || !channel.met()) end_failed_calls(channel);
  } else if (++channel.ended == channel.size()) {
    channel.ended = 0;
    ++channel.step;
    advance(channel);
  }
}

void ThreadHub::wait(CollectiveCall& call) {
  // What the consumer holds, such as tensors, is destroyed here: on the rank's own thread and
  // outside the lock.
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
  if (call.thrown != nullptr) std::rethrow_exception(call.thrown);
  if (call.aborted) throw AbortedError(call.error);
  check<CollectiveError>(call.error.empty(), call.error);
}

bool ThreadHub::test(const CollectiveCall& call) {
  const std::lock_guard lock(mutex_);
  return call.done;
}

void ThreadHub::release(CollectiveCall& call, bool unwinding) noexcept {
  GatherConsumer consumer;
  Lock lock(mutex_);
  if (inside_step) return;
  if (unwinding && !call.done && withdraw(call)) return;
  call.finished.wait(lock, [&] { return call.done; });
  consumer.swap(call.consume);
  lock.unlock();
}

bool ThreadHub::withdraw(CollectiveCall& call) {
  Channel& channel = *call.channel;
  auto& seat = channel.seats[call.slot];
  if (seat == &call) {
    // Once a step has begun, the other ranks read its buffers or are about to.
    if (channel.running > 0 || channel.ended > 0 || channel.step > 0) return false;
    seat = nullptr;
    --channel.arrived;
  }
  std::erase_if(channel.pending[call.slot],
                [&](const auto& other) { return other.get() == &call; });
  rank_of(channel, call.slot).withdrawn = call;
  call.done = true;
  return true;
}

}  // namespace moegrad
