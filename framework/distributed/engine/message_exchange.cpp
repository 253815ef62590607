// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/engine/message_exchange.h"

#include <algorithm>
#include <utility>

#include "framework/distributed/engine/message_header.h"
#include "framework/distributed/parts_cursor.h"
#include "framework/distributed/parts_reduction.h"

namespace moegrad {
namespace {

// Whether what comes from a slot lies in several places.
bool is_scattered(const CollectiveCall& call) {
  return call.op == CollectiveOp::kAllToAll && !call.has_consumer && call.output_parts.size() != 1;
}

bool is_staged(const CollectiveCall& call) {
  return call.has_consumer || is_scattered(call) || is_reduction(call.op);
}

// What one slot's payload takes. Each begins at a cache line; a short one comes with the header.
std::size_t staged_from(std::size_t bytes) {
  constexpr std::size_t kLine = 64;
  return bytes > kInlineBytes ? (bytes + kLine - 1) / kLine * kLine : 0;
}

}  // namespace

Staging::Staging(std::shared_ptr<Arena> arena, std::size_t bytes)
    : arena_(std::move(arena)),
      bytes_(bytes),
      block_(arena_->allocate(static_cast<std::int64_t>(bytes), MemoryTag::kCommunication)) {}

Staging::~Staging() {
  arena_->deallocate(block_, static_cast<std::int64_t>(bytes_), MemoryTag::kCommunication);
}

std::size_t staged_bytes(const CollectiveCall& call, std::size_t own, std::size_t ranks) {
  std::size_t total = 0;
  for (std::size_t slot = 0; slot < ranks && is_staged(call); ++slot) {
    if (slot != own) total += staged_from(incoming(call, slot, own, ranks).size);
  }
  return total;
}

std::vector<std::byte> inline_payload(const CollectiveCall& call, std::size_t own, std::size_t to,
                                      std::size_t ranks) {
  const auto range = outgoing(call, own, to, ranks);
  if (range.size > kInlineBytes) return {};
  ByteParts whole;
  const auto& parts = parts_of(call, whole);
  std::vector<std::byte> payload;
  payload.reserve(range.size);
  PartsCursor cursor(parts, range.begin);
  while (payload.size() < range.size) {
    const auto run = std::min(range.size - payload.size(), cursor.contiguous());
    payload.insert(payload.end(), cursor.data(), cursor.data() + run);
    cursor.advance(run);
  }
  return payload;
}

std::vector<std::int64_t> segments_of(const CollectiveCall& call, std::size_t own, std::size_t to,
                                      std::size_t ranks) {
  // From here on a copy takes longer than a message of its own.
  constexpr std::size_t kLongRun = 256 << 10;
  const auto range = outgoing(call, own, to, ranks);
  if (range.size <= kInlineBytes) return {};
  ByteParts whole;
  const auto& parts = parts_of(call, whole);
  std::vector<std::int64_t> segments;
  std::int64_t together = 0;
  PartsCursor cursor(parts, range.begin);
  for (auto left = range.size; left > 0;) {
    const auto run = std::min(left, cursor.contiguous());
    left -= run;
    cursor.advance(run);
    if (run < kLongRun) {
      together += static_cast<std::int64_t>(run);
      continue;
    }
    if (together > 0) segments.push_back(std::exchange(together, 0));
    segments.push_back(static_cast<std::int64_t>(run));
  }
  if (together > 0) segments.push_back(together);
  if (segments.size() > kMostSegments) return {static_cast<std::int64_t>(range.size)};
  return segments;
}

MessageExchange::MessageExchange(EngineCall& call, std::size_t own,
                                 std::vector<Announced> announced, Means means)
    : call_(call),
      own_(own),
      announced_(std::move(announced)),
      means_(std::move(means)),
      staged_(size()),
      transfer_(means_.messages, means_.piece_bytes, means_.on_send),
      peer_parts_(size()) {}

void MessageExchange::stage() {
  std::byte* next = means_.staging == nullptr ? nullptr : means_.staging->data();
  for (std::size_t slot = 0; slot < size(); ++slot) {
    const auto room = slot == own_ ? 0 : staged_from(from_slot(slot).size);
    if (room > 0) staged_[slot] = std::exchange(next, next + room);
  }
}

const std::byte* MessageExchange::input_of(std::size_t slot) const {
  return staged_[slot] != nullptr ? staged_[slot] : announced_[slot].inlined.data();
}

void MessageExchange::begin_exchange() {
  begun_ = true;
  if (is_staged(call_)) stage();
  ByteParts whole;
  const auto& parts = parts_of(call_, whole);
  for (std::size_t slot = 0; slot < size(); ++slot) {
    if (slot == own_) continue;
    const auto from = from_slot(slot);
    if (from.size > kInlineBytes) {
      auto* const target = is_staged(call_) ? staged_[slot] : call_.output.data() + from.begin;
      transfer_.receive(slot, target, *announced_[slot].segments);
    } else if (!is_staged(call_) && from.size > 0) {
      std::ranges::copy(announced_[slot].inlined, call_.output.data() + from.begin);
    }
    const auto to = to_slot(slot);
    if (to.size > kInlineBytes) {
      transfer_.send(slot, parts, to.begin, segments_of(call_, own_, slot, size()));
    }
  }
  if (call_.op == CollectiveOp::kAllToAll && !call_.has_consumer) {
    const auto own = to_slot(own_);
    PartsCursor from(parts, own.begin);
    MutablePartsCursor to(call_.output_parts, from_slot(own_).begin);
    copy_parts(from, to, own.size);
  }
  for (std::size_t slot = 0; slot < size() && is_reduction(call_.op); ++slot) {
    if (slot == own_) continue;
    peer_parts_[slot] = {{input_of(slot), from_slot(slot).size}};
  }
}

// The part of the sum that each rank has made goes to all others. What this rank has sent of the
// parts that it now receives has arrived, as its owner has summed it, and transfer_ is done.
void MessageExchange::begin_handing_out() {
  hands_out_ = true;
  const ByteParts sum = {call_.output};
  const auto own = own_share();
  for (std::size_t slot = 0; slot < size(); ++slot) {
    if (slot == own_) continue;
    const auto part = share(call_, slot, size());
    transfer_.receive(slot, call_.output.data() + part.begin,
                      {static_cast<std::int64_t>(part.size)});
    transfer_.send(slot, sum, own.begin, {static_cast<std::int64_t>(own.size)});
  }
}

// How much of its share each peer has delivered.
std::size_t MessageExchange::arrived() const {
  auto least = own_share().size;
  for (std::size_t slot = 0; slot < size(); ++slot) {
    if (staged_[slot] == nullptr) continue;
    least = std::min(least, transfer_.received_from(slot));
  }
  return least;
}

bool MessageExchange::reduce_what_has_arrived() {
  if (!is_reduction(call_.op) || hands_out_) return false;
  const auto ready = arrived();
  if (ready == reduced_) return false;
  const auto own = own_share();
  std::vector<PartsCursor> inputs;
  inputs.reserve(size());
  for (std::size_t slot = 0; slot < size(); ++slot) {
    if (slot == own_) {
      inputs.emplace_back(call_.parts, own.begin + reduced_);
    } else {
      inputs.emplace_back(peer_parts_[slot], reduced_);
    }
  }
  const auto begin = call_.op == CollectiveOp::kReduceScatter ? reduced_ : own.begin + reduced_;
  const auto count = static_cast<std::int64_t>(ready - reduced_) / size_of(call_.dtype);
  reduce_parts(inputs, call_.output.data() + begin, count, call_.dtype, call_.reduce,
               means_.scratch);
  reduced_ = ready;
  return true;
}

void MessageExchange::finish() {
  done_ = executed_ = true;
  // Last, so that no rank waits for one that copies.
  if (call_.op == CollectiveOp::kAllGather && !call_.has_consumer) {
    const auto to = from_slot(own_);
    std::ranges::copy(call_.input, call_.output.data() + to.begin);
  }
  for (std::size_t slot = 0; slot < size() && is_scattered(call_); ++slot) {
    if (slot == own_) continue;
    const auto range = from_slot(slot);
    const ByteParts came = {{input_of(slot), range.size}};
    PartsCursor from(came, 0);
    MutablePartsCursor to(call_.output_parts, range.begin);
    copy_parts(from, to, range.size);
  }
  if (!call_.has_consumer) return;
  ByteParts inputs;
  for (std::size_t slot = 0; slot < size(); ++slot) {
    if (slot != own_) {
      inputs.emplace_back(input_of(slot), from_slot(slot).size);
      continue;
    }
    const auto range = to_slot(slot);
    ByteParts whole;
    const auto own = subparts(parts_of(call_, whole), range.begin, range.size);
    inputs.insert(inputs.end(), own.begin(), own.end());
  }
  call_.consume(inputs);
}

bool MessageExchange::poll(EngineLock& lock, bool delivered, bool may_send) {
  if (done_) return false;
  const Unlocked moves_bytes(lock);
  return go_on(delivered, may_send);
}

bool MessageExchange::go_on(bool delivered, bool may_send) {
  if (!begun_ && !cancelled_) begin_exchange();
  bool progress = transfer_.poll(may_send);
  if (progress) means_.messages.wake();
  if (cancelled_) {
    done_ = transfer_.done();
    return progress;
  }
  progress = reduce_what_has_arrived() || progress;
  if (!transfer_.done()) return progress;
  if (call_.op == CollectiveOp::kAllReduce && !hands_out_ && !sums_at_once(call_)) {
    begin_handing_out();
    return true;
  }
  if (!delivered) return progress;
  try {
    finish();
  } catch (...) {
    thrown_ = std::current_exception();
  }
  return true;
}

void MessageExchange::cancel() {
  cancelled_ = true;
  transfer_.cancel();
}

}  // namespace moegrad
