// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/mpi/line.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "framework/distributed/mpi/mpi_hub.h"
#include "framework/runtime/span.h"

namespace moegrad::mpi {
namespace {

// How often the missing are asked whether they are excused.
constexpr CollectiveClock::duration kAskInterval = std::chrono::milliseconds(20);

// As headers carry it: members of a new group must agree on its name, too.
std::string label_of(const MpiCall& call) {
  return call.group_id == 0 ? call.label : call.group + ": " + call.label;
}

}  // namespace

std::byte* Staging::get(std::size_t bytes) {
  if (static_cast<std::int64_t>(bytes) > bytes_) {
    release();
    block_ = arena_->allocate(static_cast<std::int64_t>(bytes), MemoryTag::kCommunication);
    bytes_ = static_cast<std::int64_t>(bytes);
  }
  return block_;
}

void Staging::release() {
  if (block_ != nullptr) arena_->deallocate(block_, bytes_, MemoryTag::kCommunication);
  block_ = nullptr;
  bytes_ = 0;
}

Line::Line(MpiHub& hub, LineKey key, Slots slots, MPI_Comm comm, Tags tags)
    : hub_(hub),
      key_(key),
      slots_(std::move(slots)),
      comm_(comm),
      tags_(tags),
      make_transfer_([this] {
        return Transfer(
            comm_, tags_.payload, hub_.options().piece_bytes, [this](int peer, std::size_t bytes) {
              const auto at = std::ranges::find(slots_.comm_ranks, peer);
              count_sent(static_cast<std::size_t>(at - slots_.comm_ranks.begin()), bytes);
            });
      }),
      staging_(hub.arena()),
      peers_(slots_.size()) {}

void Line::add(std::shared_ptr<MpiCall> call) { calls_.push_back(std::move(call)); }

bool Line::poll(CollectiveClock::time_point now, CollectiveClock::time_point& wake_at) {
  if (calls_.empty()) return false;
  auto& call = *calls_.front();
  const auto is_due = [&](CollectiveClock::time_point time) {
    if (now < time) wake_at = std::min(wake_at, time);
    return now >= time;
  };
  switch (phase_) {
    case Phase::kIdle:
      return is_due(call.joins_at) && send_headers(call);
    case Phase::kHeaders: {
      const bool progress = receive_headers(call);
      if (hub_.has_failed()) return true;
      if (ranks_that(false).empty()) return meet(call, now);
      return watch_headers(call, wake_at) || progress;
    }
    case Phase::kDelayed:
      return is_due(begins_at_) && begin_payload(call);
    case Phase::kTransfer: {
      if (payload_->waits_for_delivery() && !is_due(delivered_at_)) return false;
      const auto cpu_before = thread_cpu_time();
      std::exception_ptr thrown;
      bool progress = false;
      try {
        const MpiHub::StepGuard step;
        progress = payload_->poll(is_due(delivered_at_));
      } catch (...) {
        thrown = std::current_exception();
      }
      call.busy += thread_cpu_time() - cpu_before;
      if (payload_->has_moved()) hub_.ring(slots_.world_ranks);
      if (thrown != nullptr && !payload_->done()) {  // MPI's, while messages are under way
        std::rethrow_exception(thrown);
      }
      if (thrown != nullptr || (payload_->done() && headers_sent())) {
        end_call(call, std::move(thrown));
        return true;
      }
      if (hub_.running() >= expires_) give_up_payload(call);
      return progress;
    }
  }
  return false;
}

bool Line::waits_for_messages() const {
  if (phase_ == Phase::kTransfer) return payload_ != nullptr && !payload_->waits_for_delivery();
  return phase_ == Phase::kHeaders;
}

bool Line::will_be_woken() const {
  // While a payload is under way, MPI exchanges messages of its own, for which nobody rings.
  return !waits_for_messages() ||
         (phase_ == Phase::kHeaders && hub_.is_rung_by(slots_.world_ranks));
}

bool Line::send_headers(MpiCall& call) {
  CallHeader header{.request = call,
                    .received = received_from_others(call, slots_.own),
                    .deadline_ms = call.deadline.value_or(hub_.options().deadline).count(),
                    .group_id = call.group_id};
  header.request.label = label_of(call);
  std::vector<std::size_t> sizes(slots_.size()), inlined(slots_.size());
  {
    // Until the call is withdrawn, its buffers are there to read.
    const auto lock = hub_.lock();
    if (call.state == CallState::kGivenUp) return false;
    call.state = CallState::kJoined;
    hub_.note_state(call);
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      if (slot == slots_.own) continue;
      auto& peer = peers_[slot];
      peer.out.resize(kHeaderBytes);
      peer.in.resize(kHeaderBytes);
      if (call.op == CollectiveOp::kAllToAll) {
        header.pair_count = call.send_counts[slot];
        header.pair_expected = call.recv_counts[slot];
      }
      header.segments = segments_of(call, slots_, slot);
      const auto payload = inline_payload(call, slots_, slot);
      inlined[slot] = payload.size();
      sizes[slot] = encode(header, payload, peer.out);
    }
  }
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    auto& peer = peers_[slot];
    peer.arrived = slot == slots_.own;
    peer.header = {};
    peer.excused = {};
    peer.asked = false;
    if (slot == slots_.own) continue;
    const int to = slots_.comm_ranks[slot];
    check_mpi(MPI_Irecv(peer.in.data(), static_cast<int>(kHeaderBytes), MPI_BYTE, to,
                        tags_.header_in, comm_, &peer.receiving),
              "MPI_Irecv");
    check_mpi(MPI_Isend(peer.out.data(), static_cast<int>(sizes[slot]), MPI_BYTE, to,
                        tags_.header_out, comm_, &peer.sending),
              "MPI_Isend");
    count_sent(slot, inlined[slot]);
  }
  hub_.ring(slots_.world_ranks);
  peers_[slots_.own].header = header;
  waits_since_ = hub_.running();
  const auto half = std::chrono::milliseconds(header.deadline_ms) / 2;
  asks_at_ = hub_.any_has_left() ? waits_since_ : waits_since_ + half;
  phase_ = Phase::kHeaders;
  return true;
}

bool Line::receive_headers(MpiCall& call) {
  bool progress = false;
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    auto& peer = peers_[slot];
    if (peer.arrived) continue;
    int flag = 0;
    MPI_Status status;
    check_mpi(MPI_Test(&peer.receiving, &flag, &status), "MPI_Test");
    if (flag == 0) continue;
    int size = 0;
    MPI_Get_count(&status, MPI_BYTE, &size);
    peer.header = decode(std::span(peer.in).first(static_cast<std::size_t>(size)), peer.payload);
    peer.header.request.queue = call.queue;
    peer.arrived = true;
    progress = true;
    const auto what = disagreement(call, slot);
    if (what.empty()) continue;
    hub_.fail(what, call);
    return true;
  }
  return progress;
}

std::string Line::disagreement(const MpiCall& call, std::size_t slot) const {
  CollectiveRequest own = call;
  own.label = wire_label(label_of(call));
  const auto& other = peers_[slot].header.request;
  const auto& ranks = slots_.world_ranks;
  if (!agree(own, other)) {
    return slots_.own < slot ? moegrad::disagreement(ranks[slots_.own], own, ranks[slot], other)
                             : moegrad::disagreement(ranks[slot], other, ranks[slots_.own], own);
  }
  if (call.op != CollectiveOp::kAllToAll) return {};
  // Both of a pair look at both directions, so that neither ends its part well.
  const auto& theirs = peers_[slot].header;
  const auto wrong = [&](std::size_t from, std::size_t to) -> std::string {
    const bool is_sender = from == slots_.own;
    const auto sent = is_sender ? call.send_counts[slot] : theirs.pair_count;
    const auto expected = is_sender ? theirs.pair_expected : call.recv_counts[slot];
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

// The longest that one of the ranks that have joined has.
CollectiveClock::duration Line::deadline() const {
  std::int64_t longest = 0;
  for (const auto& peer : peers_) longest = std::max(longest, peer.header.deadline_ms);
  return std::chrono::milliseconds(longest);
}

// Whether a deadline has passed, and whether those that are missing can still come. They are asked,
// since a process that is stopped answers nothing.
bool Line::watch_headers(MpiCall& call, CollectiveClock::time_point& wake_at) {
  CollectiveClock::duration excused{0};
  for (const auto& peer : peers_) {
    if (!peer.arrived) excused = std::max(excused, peer.excused);
  }
  const auto waited = hub_.running() - waits_since_;
  if (waited >= deadline() + excused + hub_.options().jitter.maximum) {
    const auto missing = ranks_that(false), waiting = ranks_that(true);
    hub_.fail("not joined within " +
                  std::to_string(
                      std::chrono::duration_cast<std::chrono::milliseconds>(deadline()).count()) +
                  " ms by " + name_ranks(missing) + "; waiting: " + name_ranks(waiting),
              call);
    return true;
  }
  const auto interval = std::min(kAskInterval, deadline() / 8);
  wake_at = std::min(wake_at, CollectiveClock::now() + interval);
  if (hub_.running() < asks_at_) return false;
  asks_at_ = hub_.running() + interval;
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    auto& peer = peers_[slot];
    if (peer.arrived || std::exchange(peer.asked, true)) continue;
    hub_.ask(slots_.world_ranks[slot], key_, call.sequence, waited);
  }
  return false;
}

void Line::ask_at_once() {
  asks_at_ = CollectiveClock::duration::min();
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
    hub_.fail("rank " + std::to_string(world_rank) +
                  " has left; waiting: " + name_ranks(ranks_that(true)),
              *calls_.front());
    return;
  }
}

bool Line::meet(MpiCall& call, CollectiveClock::time_point now) {
  const auto lock = hub_.lock();
  if (call.state == CallState::kGivenUp) return false;
  call.met = now;
  std::int64_t most_received = 0;
  for (const auto& peer : peers_) most_received = std::max(most_received, peer.header.received);
  const auto ranks = static_cast<std::int64_t>(slots_.size());
  if (ranks > 1) {
    // What is sent goes at once: it is part of what the modelled link takes.
    const auto& link = hub_.options().link;
    call.wire_bytes = wire_bytes(call, ranks, most_received);
    begins_at_ = now + hub_.jitter(call, 1);
    usually_there_ = now + link.duration(call.wire_bytes);
    delivered_at_ = now + link.duration(call.wire_bytes, slots_.world_ranks[slots_.own]);
  } else {
    begins_at_ = usually_there_ = delivered_at_ = now;
  }
  expires_ = hub_.running() + (delivered_at_ - now) + hub_.options().jitter.maximum + deadline();
  phase_ = Phase::kDelayed;
  return true;
}

bool Line::begin_payload(MpiCall& call) {
  {
    const auto lock = hub_.lock();
    if (call.state == CallState::kGivenUp) return false;
    call.state = CallState::kRunning;
    hub_.note_state(call);
  }
  std::vector<Payload::Announced> announced;
  for (const auto& peer : peers_) {
    announced.push_back({.inlined = peer.payload, .segments = &peer.header.segments});
  }
  payload_ = std::make_unique<Payload>(
      call, slots_, std::move(announced), make_transfer_,
      Payload::Buffers{.staging = [this](std::size_t bytes) { return staging_.get(bytes); },
                       .scratch = scratch_});
  phase_ = Phase::kTransfer;
  return true;
}

// A message of the oldest call, with so many bytes of its payload.
void Line::count_sent(std::size_t slot, std::size_t payload) {
  if (hub_.is_on_this_host(slots_.world_ranks[slot])) return;
  ++calls_.front()->host_messages;
  calls_.front()->host_bytes += static_cast<std::int64_t>(payload);
}

bool Line::headers_sent() {
  bool all = true;
  for (auto& peer : peers_) {
    int flag = 0;
    check_mpi(MPI_Test(&peer.sending, &flag, MPI_STATUS_IGNORE), "MPI_Test");
    all = all && flag != 0;
  }
  return all;
}

void Line::end_call(MpiCall& call, std::exception_ptr thrown) {
  call.ended = CollectiveClock::now();
  call.work = std::max(call.ended - usually_there_, CollectiveClock::duration::zero());
  payload_.reset();
  phase_ = Phase::kIdle;
  const auto kept = std::move(calls_.front());
  calls_.pop_front();
  hub_.conclude(call, std::move(thrown));
}

void Line::give_up_payload(MpiCall& call) {
  headers_sent();  // finds which have gone
  std::vector<int> late, waiting;
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    const bool gone = slot == slots_.own ||
                      (payload_->done_with(slot) && peers_[slot].sending == MPI_REQUEST_NULL);
    (gone ? waiting : late).push_back(slots_.world_ranks[slot]);
  }
  hub_.fail("not executed within " +
                std::to_string(
                    std::chrono::duration_cast<std::chrono::milliseconds>(deadline()).count()) +
                " ms by " + name_ranks(late) + "; waiting: " + name_ranks(waiting),
            call);
}

bool Line::abort(bool abandoned) {
  if (!abandoned && phase_ == Phase::kTransfer && payload_ != nullptr) {
    if (!std::exchange(cancelled_, true)) payload_->cancel();
    payload_->poll(/*delivered=*/false);
    if (!payload_->done()) return false;
  }
  for (auto& peer : peers_) {
    if (abandoned || peer.receiving == MPI_REQUEST_NULL) continue;
    MPI_Cancel(&peer.receiving);
    MPI_Wait(&peer.receiving, MPI_STATUS_IGNORE);
  }
  for (const auto& call : calls_) hub_.conclude(*call, nullptr);
  calls_.clear();
  phase_ = Phase::kIdle;
  return abandoned || headers_sent();
}

}  // namespace moegrad::mpi
