// SPDX-License-Identifier: Apache-2.0
// The two sides of a posted call: the communication threads that execute it, and the rank's own
// thread that waits for it.
#include <algorithm>
#include <sstream>
#include <utility>

#include "framework/distributed/aborted_error.h"
#include "framework/distributed/thread_hub.h"

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

void ThreadHub::start() {
  for (const auto& rank : ranks_) rank->thread = std::thread([this, &rank] { serve(*rank); });
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
}

void ThreadHub::serve(Rank& rank) {
  std::vector<std::byte> scratch;
  Lock lock(mutex_);
  while (true) {
    // Never asleep for longer than the deadline, so that a call posted meanwhile need not wake
    // this thread to have its own deadline watched.
    auto wake_at = CollectiveClock::now() + deadline_;
    bool busy = false;
    bool pending = false;
    for (std::size_t i = 0; i < rank.channels.size(); ++i) {  // may grow while a step runs
      const auto [channel, slot] = rank.channels[i];
      busy = poll(lock, *channel, slot, scratch, wake_at) || busy;
      pending = pending || !channel->pending[slot].empty();
    }
    if (busy) continue;
    if (stopped_ && !pending) return;
    rank.wake.wait_until(lock, wake_at);
  }
}

bool ThreadHub::poll(Lock& lock, Channel& channel, std::size_t slot,
                     std::vector<std::byte>& scratch, CollectiveClock::time_point& wake_at) {
  CollectiveCall* const call = channel.seats[slot];
  if (call == nullptr) return false;
  const auto now = CollectiveClock::now();
  if (!channel.met()) {
    wake_at = std::min(wake_at, channel.expires);
    if (now < channel.expires) return false;
    std::ostringstream cause;
    cause << "not joined within " << deadline_.count() << " ms by " << channel.list_ranks(false)
          << "; waiting: " << channel.list_ranks(true);
    fail(cause.str(), &channel);
    return true;
  }
  if (now < channel.ready_at) {
    wake_at = std::min(wake_at, channel.ready_at);
    return false;
  }
  if (channel.step == num_steps(call->op)) {  // a barrier on a modelled link
    conclude(channel);
    return true;
  }
  if (call->steps_begun > channel.step || !failure_.empty()) return false;
  execute_step(lock, channel, slot, scratch);
  return true;
}

void ThreadHub::execute_step(Lock& lock, Channel& channel, std::size_t slot,
                             std::vector<std::byte>& scratch) {
  CollectiveCall& call = *channel.seats[slot];
  ++call.steps_begun;
  ++channel.running;
  std::exception_ptr thrown;
  std::string reason;
  lock.unlock();
  const auto cpu_before = thread_cpu_time();
  const bool outer = std::exchange(inside_step, true);
  try {
    run_step(channel.seats, slot, call.steps_begun - 1, scratch);
  } catch (...) {
    thrown = std::current_exception();
    reason = what(thrown);
  }
  inside_step = outer;
  const auto cpu_time = thread_cpu_time() - cpu_before;
  lock.lock();
  call.busy += cpu_time;
  if (thrown != nullptr) {
    call.thrown = std::move(thrown);
    fail("rank " + std::to_string(channel.ranks[slot]) + " failed: " + reason);
  }
  --channel.running;
  if (!failure_.empty()) {
    if (channel.running == 0) end_failed_calls(channel);
  } else if (++channel.ended == channel.size()) {
    channel.ended = 0;
    ++channel.step;
    advance(channel);
  }
}

void ThreadHub::wait(CollectiveCall& call) {
  // What the consumer holds, tensors perhaps, ends here, on the rank's own thread and in its own
  // time, and outside the lock.
  GatherConsumer consumer;
  Lock lock(mutex_);
  if (inside_step && !call.done) {
    throw CollectiveError(describe(call, call.channel->group) +
                          ": a consumer cannot wait for a collective, it holds up the thread that "
                          "executes them");
  }
  call.finished.wait(lock, [&] { return call.done; });
  consumer.swap(call.consume);
  lock.unlock();
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
    // Once a step has begun the others are reading its buffers, or are about to.
    if (channel.running > 0 || channel.ended > 0 || channel.step > 0) return false;
    seat = nullptr;
    --channel.arrived;
  }
  std::erase_if(channel.pending[call.slot],
                [&](const auto& other) { return other.get() == &call; });
  rank_of(channel, call.slot).withdrawn = describe(call, channel.group);
  call.done = true;
  return true;
}

}  // namespace moegrad
