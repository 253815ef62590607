// SPDX-License-Identifier: Apache-2.0
// How a launch fails on a rank: what is recorded, and how its calls end.
#include <algorithm>
#include <cerrno>
#include <system_error>
#include <thread>
#include <utility>

#include "framework/distributed/engine/engine.h"
#include "framework/runtime/exception_message.h"
#include "framework/runtime/log.h"

namespace moegrad {
namespace {

// After a failure: how long messages that are under way may take.
constexpr CollectiveClock::duration kGrace = std::chrono::seconds(1);

// How long what it had overtaken may hold up a failure.
constexpr CollectiveClock::duration kOvertaken = std::chrono::milliseconds(10);

bool same_meeting(const LineKey& a, const LineKey& b) { return a == b || a == across(b); }

}  // namespace

void Engine::body_failed(const std::string& what) {
  EngineLock lock(launch_->mutex);
  launch_->fail(
      {.cause = "rank " + std::to_string(rank_) + " failed: " + what, .rank_threw = true});
  carry_on(lock);
}

void Engine::fail(const std::string& cause, const EngineCall& origin) {
  launch_->fail({.cause = cause,
                 .origin = describe(origin),
                 .line = origin.line,
                 .sequence = origin.sequence});
}

void Engine::fail_by_consumer(EngineCall& call, std::exception_ptr thrown) {
  call.thrown = std::move(thrown);
  launch_->fail(
      {.cause = "rank " + std::to_string(rank_) + " failed: " + message_of_exception(call.thrown),
       .rank_threw = true});
}

void Engine::fail_by_withdrawal() {
  if (!withdrawn_) return;
  launch_->fail({.cause = "rank " + std::to_string(rank_) + " gave up " +
                          describe(withdrawn_->request) + " because of an exception"});
}

// A consumer that let a call go would hold up the thread that ends it. An exception says more.
void Engine::fail_by_drop(const EngineCall& call) {
  launch_->fail({.cause = "rank " + std::to_string(rank_) + " dropped the Work of " +
                          describe(call) + " in a consumer, which cannot wait for it"});
}

// After a failure: carries on what the thread that runs the consumer would, until no one reads the
// call's buffers.
void Engine::end_in_consumer(EngineLock& lock, const EngineCall& call) {
  constexpr std::chrono::microseconds kNap{50};
  while (!call.done) {
    carry_on(lock);
    if (transport_->any_thread() || own_thread_ == std::this_thread::get_id()) poll_failed(lock);
    const Unlocked others(lock);
    std::this_thread::sleep_for(kNap);
  }
}

void Engine::mark_failed() {
  const auto& failure = launch_->failure();
  for (const auto& call : pending_) {
    call->aborted = failure.origin.empty() || !same_meeting(call->line, failure.line) ||
                    call->sequence != failure.sequence;
    call->error =
        describe(*call) + ": " + (call->aborted ? launch_->failure_text() : failure.cause);
  }
}

// What another rank has told. It may overtake what ranks had sent before, such as the last header
// of a barrier that all have passed: so lines first go on as far as they get.
void Engine::take_heard_failure(bool progress) {
  if (!heard_failure_ || has_failed()) return;
  if (progress && CollectiveClock::now() - heard_at_ < kOvertaken) return;
  launch_->fail(*heard_failure_);
}

std::vector<HistoryLine> Engine::history() const {
  std::vector<HistoryLine> lines;
  for (const auto& entry : history_.entries()) {
    auto state = CallState::kDone;
    if (withdrawn_ && withdrawn_->number == entry.number) state = CallState::kGivenUp;
    for (const auto& call : pending_) {
      if (call->number == entry.number) state = call->state;
    }
    lines.push_back(history_line(entry.request, to_string(state)));
  }
  return lines;
}

void Engine::write_last_operations() {
  std::string reason;
  {
    const std::lock_guard lock(launch_->mutex);
    // Where ranks are threads, what one of them throws comes to the caller, and says enough.
    const bool says_enough =
        transport_->any_thread() && has_failed() && launch_->failure().rank_threw;
    if (has_failed() && !says_enough) reason = launch_->failure_text();
  }
  if (reason.empty() || last_operations_.write_file(reason.c_str())) return;
  // A launch may well fail before the body has made the folder.
  if (errno == ENOENT) return;
  log(LogLevel::kWarning, launch_->name + ": cannot write " + last_operations_.file() + ": " +
                              std::generic_category().message(errno));
}

void Engine::poll_failed(EngineLock& lock) {
  if (!std::exchange(told_failure_, true)) {
    told_failure_at_ = running();
    tell_failure();
  }
  for (const auto& later : std::exchange(alone_later_, {})) conclude(*later);
  bool all = true;
  // The lock may be released, and lines made or forgotten.
  for (std::size_t i = 0; i < in_order_.size(); ++i) all = in_order_[i]->abort(lock) && all;
  quiet_ = transport_->drain() && all;
  if (!quiet_ && !transport_->any_thread() && running() - told_failure_at_ > kGrace) abandon();
}

void Engine::abandon() {
  abandoned_ = quiet_ = true;
  transport_->abandon();
  for (auto* const line : in_order_) line->abandon();
}

void Engine::conclude_all() {
  while (!pending_.empty()) {
    const auto call = pending_.front();
    if (call->error.empty()) {
      call->error = describe(*call) + ": group " + call->group + ": the launch has ended";
    }
    conclude(*call);
  }
}

void Engine::close() {
  EngineLock lock(launch_->mutex);
  launch_->stopped = true;
  conclude_all();
  in_order_.clear();
  lines_.clear();
}

}  // namespace moegrad
