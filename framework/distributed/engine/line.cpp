// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/engine/line.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "framework/distributed/engine/call_bytes.h"
#include "framework/distributed/engine/engine.h"
#include "framework/runtime/span.h"

namespace moegrad {
namespace {

using std::chrono::milliseconds;

// How often the missing are asked whether they are excused.
constexpr CollectiveClock::duration kAskInterval = milliseconds(20);

bool is_due(CollectiveClock::time_point time, Line::Turn& turn) {
  if (turn.now < time) turn.wake_at = std::min(turn.wake_at, time);
  return turn.now >= time;
}

std::string in_milliseconds(CollectiveClock::duration time) {
  return std::to_string(std::chrono::duration_cast<milliseconds>(time).count()) + " ms";
}

}  // namespace

Line::Line(Engine& engine, LineKey key, Slots slots, std::unique_ptr<Wire> wire)
    : engine_(engine),
      key_(key),
      slots_(std::move(slots)),
      wire_(std::move(wire)),
      priority_(engine.options().priority_of(key.queue)),
      peers_(slots_.size()) {}

void Line::add(std::shared_ptr<EngineCall> call) { calls_.push_back(std::move(call)); }

bool Line::poll(EngineLock& lock, Turn& turn) {
  if (calls_.empty() || busy_) return false;
  const auto call = calls_.front();
  switch (phase_) {
    case Phase::kIdle:
      return is_due(call->joins_at, turn) && announce(call);
    case Phase::kHeaders: {
      const bool progress = take_arrivals(*call);
      if (engine_.has_failed()) return true;
      if (ranks_that(false).empty()) return meet(*call, turn);
      return watch_headers(*call, turn) || progress;
    }
    case Phase::kDelayed: {
      if (!is_due(begins_at_, turn)) return false;
      // What has to be sent goes at once: it is part of what the modelled link takes.
      const bool delivered = is_delivered(turn);
      return (delivered || wire_->sends()) && begin_payload(*call);
    }
    case Phase::kTransfer:
      return transfer(lock, *call, turn);
  }
  return false;
}

bool Line::has(int world_rank) const {
  return std::ranges::find(slots_.world_ranks, world_rank) != slots_.world_ranks.end();
}

bool Line::waits_for_messages() const {
  return phase_ == Phase::kHeaders || (phase_ == Phase::kTransfer && !on_link_);
}

bool Line::will_be_woken() const {
  // While a payload is under way, a transport may exchange messages of its own.
  return !waits_for_messages() || engine_.transport().any_thread() ||
         (phase_ == Phase::kHeaders && engine_.transport().is_woken_by(slots_.world_ranks));
}

bool Line::announce(const std::shared_ptr<EngineCall>& call) {
  if (call->state == CallState::kGivenUp) return false;
  engine_.set_state(*call, CallState::kJoined);
  header_.request = named(*call);
  header_.received = moved_bytes(*call, slots_.own, slots_.size()).received;
  header_.deadline_ms = call->deadline.value_or(engine_.options().deadline).count();
  header_.group_id = call->group_id;
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    peers_[slot] = {.arrived = slot == slots_.own};
  }
  deadline_ = milliseconds(header_.deadline_ms);
  most_received_ = header_.received;
  proposed_group_ = header_.group_id;
  wire_->announce(call, header_);
  waits_since_ = engine_.running();
  asks_at_ = engine_.any_has_left() ? waits_since_ : waits_since_ + deadline_ / 2;
  phase_ = Phase::kHeaders;
  return true;
}

bool Line::take_arrivals(const EngineCall& call) {
  bool progress = false;
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    auto& peer = peers_[slot];
    if (peer.arrived) continue;
    const auto arrival = wire_->arrival(slot);
    if (arrival.header == nullptr) continue;
    peer.arrived = progress = true;
    deadline_ =
        std::max<CollectiveClock::duration>(deadline_, milliseconds(arrival.header->deadline_ms));
    most_received_ = std::max(most_received_, arrival.header->received);
    if (slot == 0) proposed_group_ = arrival.header->group_id;
    const auto what = disagreement(call, slot, arrival);
    if (what.empty()) continue;
    engine_.fail(what, call);
    return true;
  }
  return progress;
}

std::string Line::disagreement(const EngineCall& call, std::size_t slot,
                               const Arrival& arrival) const {
  const auto& own = header_.request;
  const auto& other = arrival.header->request;
  const auto& ranks = slots_.world_ranks;
  if (!agree(own, other)) {
    return slots_.own < slot ? moegrad::disagreement(ranks[slots_.own], own, ranks[slot], other)
                             : moegrad::disagreement(ranks[slot], other, ranks[slots_.own], own);
  }
  if (call.op != CollectiveOp::kAllToAll) return {};
  // Both of a pair look at both directions, so that neither ends its part well.
  const auto wrong = [&](std::size_t from, std::size_t to) -> std::string {
    const bool is_sender = from == slots_.own;
    const auto sent = is_sender ? call.send_counts[slot] : arrival.sends;
    const auto expected = is_sender ? arrival.expects : call.recv_counts[slot];
    if (sent == expected) return {};
    std::ostringstream text;
    text << "rank " << ranks[from] << " sends " << sent << ' ' << call.dtype << " to rank "
         << ranks[to] << ", which expects " << expected;
    return text.str();
  };
  const auto [first, second] = std::minmax(slots_.own, slot);
  const auto forward = wrong(first, second);
  return forward.empty() ? wrong(second, first) : forward;
}

std::vector<int> Line::ranks_that(bool arrived) const {
  std::vector<int> ranks;
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    if (peers_[slot].arrived == arrived) ranks.push_back(slots_.world_ranks[slot]);
  }
  return ranks;
}

// Whether a deadline has passed, and whether those that are missing can still come. They are asked,
// since a process that is stopped answers nothing.
bool Line::watch_headers(EngineCall& call, Turn& turn) {
  CollectiveClock::duration excused{0};
  for (const auto& peer : peers_) {
    if (!peer.arrived) excused = std::max(excused, peer.excused);
  }
  const auto waited = engine_.running() - waits_since_;
  if (waited >= deadline_ + excused + engine_.options().jitter.maximum) {
    const auto missing = ranks_that(false), waiting = ranks_that(true);
    engine_.fail("not joined within " + in_milliseconds(deadline_) + " by " + name_ranks(missing) +
                     "; waiting: " + name_ranks(waiting),
                 call);
    return true;
  }
  const auto interval = std::min(kAskInterval, deadline_ / 8);
  const auto until_asked = std::max(asks_at_ - engine_.running(), interval);
  turn.wake_at = std::min(turn.wake_at, turn.now + until_asked);
  if (engine_.running() < asks_at_) return false;
  asks_at_ = engine_.running() + interval;
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    auto& peer = peers_[slot];
    if (peer.arrived || std::exchange(peer.asked, true)) continue;
    engine_.ask(slots_.world_ranks[slot], key_, call.sequence, waited);
  }
  return false;
}

void Line::ask_at_once() {
  asks_at_ = {};
  for (auto& peer : peers_) peer.asked = false;
}

void Line::hear(int world_rank, const Answer& answer) {
  if (phase_ != Phase::kHeaders || calls_.front()->sequence != answer.sequence) return;
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    auto& peer = peers_[slot];
    if (slots_.world_ranks[slot] != world_rank || peer.arrived) continue;
    peer.asked = false;
    peer.excused = std::max(peer.excused, answer.excused);
    if (!answer.has_left || answer.has_issued) continue;
    engine_.fail("rank " + std::to_string(world_rank) +
                     " has left; waiting: " + name_ranks(ranks_that(true)),
                 *calls_.front());
    return;
  }
}

bool Line::meet(EngineCall& call, Turn& turn) {
  if (call.state == CallState::kGivenUp) return false;
  call.met = turn.now;
  expires_ = engine_.running() + engine_.options().jitter.maximum + deadline_;
  call.wire_bytes = most_received_;
  begins_at_ = turn.now + engine_.jitter(call, 1);
  begin_on_link(call, turn.now);
  phase_ = Phase::kDelayed;
  return true;
}

void Line::begin_on_link(EngineCall& call, CollectiveClock::time_point now) {
  const auto& model = engine_.options().link;
  const auto own = slots_.world_ranks[slots_.own];
  const auto others = std::max<std::int64_t>(std::ssize(slots_.world_ranks) - 1, 1);
  const auto here = std::ranges::count_if(slots_.world_ranks,
                                          [&](int rank) { return model.share_a_host(own, rank); });
  const auto between = static_cast<std::int64_t>(slots_.size()) - here;
  LinkLoad load = {.bytes_between = call.wire_bytes * between / others,
                   .crosses_hosts = between > 0};
  load.bytes = call.wire_bytes - load.bytes_between;
  on_link_ = engine_.link().begin(load, priority_, now);
  usually_there_ = now;
}

// Whether the modelled link has delivered. Until then no deadline counts.
bool Line::is_delivered(Turn& turn) {
  if (!on_link_) return true;
  const auto delivery = engine_.link().delivery(*on_link_, turn.now);
  usually_there_ = delivery;
  expires_ = engine_.running() + engine_.options().jitter.maximum + deadline_;
  if (!is_due(delivery, turn)) return false;
  const auto& model = engine_.options().link;
  const auto slow = std::ranges::find(slots_.world_ranks, model.slow_rank);
  if (slow != slots_.world_ranks.end()) {
    const auto slower = [&](CollectiveClock::duration time) {
      return std::chrono::duration_cast<CollectiveClock::duration>((model.slow_by - 1) * time);
    };
    // Its link has queued as much as this one.
    expires_ += slower(delivery - calls_.front()->met);
    if (model.slow_rank == slots_.world_ranks[slots_.own]) {
      usually_there_ -= slower(engine_.link().alone(*on_link_));
    }
  }
  leave_link();
  return true;
}

bool Line::begin_payload(EngineCall& call) {
  if (call.state == CallState::kGivenUp) return false;
  exchange_ = wire_->begin(engine_.options().piece_bytes);
  if (exchange_ == nullptr) {  // a rank has taken its call back, and is missing again
    leave_link();
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      peers_[slot].arrived = slot == slots_.own || wire_->arrival(slot).header != nullptr;
    }
    phase_ = Phase::kHeaders;
    return true;
  }
  engine_.set_state(call, CallState::kRunning);
  phase_ = Phase::kTransfer;
  return true;
}

bool Line::transfer(EngineLock& lock, EngineCall& call, Turn& turn) {
  const bool delivered = is_delivered(turn);
  if (!turn.works && exchange_->has_work()) {
    turn.left_work = turn.left_work || delivered;
    return false;
  }
  const auto cpu_before = thread_cpu_time();
  busy_ = true;
  bool progress = false;
  try {
    const Engine::StepGuard step(call);
    progress = exchange_->poll(lock, delivered, turn.may_send);
  } catch (...) {
    busy_ = false;
    throw;
  }
  busy_ = false;
  call.busy += thread_cpu_time() - cpu_before;
  if (exchange_->executed() && call.state == CallState::kRunning) note_executed(call);
  if (exchange_->thrown() != nullptr && call.thrown == nullptr) {
    engine_.fail_by_consumer(call, exchange_->thrown());
    return true;
  }
  if (engine_.has_failed()) return true;
  if (exchange_->done() && headers_sent()) {
    end_call(call);
    return true;
  }
  if (!delivered) return progress;
  const auto left = expires_ - engine_.running();
  turn.wake_at = std::min(turn.wake_at, turn.now + std::max(left, kAskInterval / 20));
  if (left <= CollectiveClock::duration::zero()) give_up_payload(call);
  return progress;
}

void Line::note_executed(EngineCall& call) {
  engine_.set_state(call, CallState::kExecuted);
  call.work = std::max(CollectiveClock::now() - usually_there_ - exchange_->waited(),
                       CollectiveClock::duration::zero());
}

void Line::leave_link() {
  if (on_link_) engine_.link().end(*on_link_);
  on_link_.reset();
}

bool Line::headers_sent() {
  bool all = true;
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    if (slot != slots_.own) all = wire_->has_sent(slot) && all;
  }
  return all;
}

void Line::end_call(EngineCall& call) {
  call.ended = CollectiveClock::now();
  exchange_.reset();
  phase_ = Phase::kIdle;
  const auto kept = std::move(calls_.front());
  calls_.pop_front();
  engine_.conclude(call);
}

void Line::give_up_payload(const EngineCall& call) {
  headers_sent();  // finds which have gone
  std::vector<int> late, waiting;
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    const bool gone = slot == slots_.own ? !exchange_->has_work()
                                         : exchange_->done_with(slot) && wire_->has_sent(slot);
    (gone ? waiting : late).push_back(slots_.world_ranks[slot]);
  }
  engine_.fail("not executed within " + in_milliseconds(deadline_) + " by " + name_ranks(late) +
                   "; waiting: " + name_ranks(waiting),
               call);
}

bool Line::withdraw(const EngineCall& call) {
  const bool is_oldest = !calls_.empty() && calls_.front().get() == &call;
  return !is_oldest || phase_ == Phase::kIdle || wire_->withdraw();
}

bool Line::abort(EngineLock& lock) {
  if (busy_) return false;
  leave_link();
  bool ended = true;  // no one reads or writes the buffers of the oldest call
  if (phase_ != Phase::kIdle) {
    if (exchange_ != nullptr) {
      if (!std::exchange(cancelled_, true)) exchange_->cancel();
      busy_ = true;
      exchange_->poll(lock, /*delivered=*/false, /*may_send=*/true);
      busy_ = false;
      ended = exchange_->done();
    }
    // A consumer of a gather may never return, and is given up; all else ends soon.
    const bool gathers = !calls_.empty() && calls_.front()->op == CollectiveOp::kAllGather;
    const bool has_met = phase_ == Phase::kTransfer || phase_ == Phase::kDelayed;
    const bool give_up = has_met && gathers && engine_.running() >= expires_;
    ended = wire_->abort(give_up) && (ended || give_up);
  }
  if (ended) phase_ = Phase::kIdle;
  while (calls_.size() > (ended ? 0 : 1)) {
    engine_.conclude(*calls_.back());
    calls_.pop_back();
  }
  return ended && headers_sent();
}

void Line::abandon() {
  for (const auto& call : calls_) engine_.conclude(*call);
  calls_.clear();
  phase_ = Phase::kIdle;
}

}  // namespace moegrad
