// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/mpi/payload.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "framework/distributed/mpi/call_header.h"
#include "framework/distributed/parts_cursor.h"
#include "framework/distributed/parts_reduction.h"

namespace moegrad::mpi {
namespace {

// Bytes [begin, begin + size) of a buffer.
struct Range {
  std::size_t begin = 0;
  std::size_t size = 0;
};

std::size_t bytes_of(const CollectiveCall& call, std::int64_t count) {
  return static_cast<std::size_t>(count * size_of(call.dtype));
}

bool sums_at_once(const CollectiveCall& call) {
  return call.op == CollectiveOp::kAllReduce && bytes_of(call, call.count) <= kInlineBytes;
}

// What rank `slot` of `ranks` sums.
Range share(const CollectiveCall& call, std::size_t slot, std::size_t ranks) {
  const auto cut = [&](std::size_t part) {
    return bytes_of(
        call, call.count * static_cast<std::int64_t>(part) / static_cast<std::int64_t>(ranks));
  };
  if (sums_at_once(call)) return {.size = bytes_of(call, call.count)};
  return {.begin = cut(slot), .size = cut(slot + 1) - cut(slot)};
}

Range segment(const CollectiveCall& call, const std::vector<std::int64_t>& counts,
              std::size_t slot) {
  const auto at = counts.begin() + static_cast<std::ptrdiff_t>(slot);
  return {.begin = bytes_of(call, std::accumulate(counts.begin(), at, std::int64_t{0})),
          .size = bytes_of(call, *at)};
}

// The part of this rank's input that slot `to` gets.
Range outgoing(const CollectiveCall& call, const Slots& slots, std::size_t to) {
  switch (call.op) {
    case CollectiveOp::kAllGather:
    case CollectiveOp::kSend:
      return {.size = call.input.size()};
    case CollectiveOp::kReduceScatter:
    case CollectiveOp::kAllReduce:
      return share(call, to, slots.size());
    case CollectiveOp::kBroadcast:
      return {.size = static_cast<std::size_t>(call.root) == slots.own ? call.input.size() : 0};
    case CollectiveOp::kAllToAll:
      return segment(call, call.send_counts, to);
    case CollectiveOp::kRecv:
    case CollectiveOp::kBarrier:
      return {};
  }
  return {};
}

// What slot `from` sends, as the place in the output where it goes.
Range incoming(const CollectiveCall& call, const Slots& slots, std::size_t from) {
  switch (call.op) {
    case CollectiveOp::kAllGather:
      return {.begin = from * call.input.size(), .size = call.input.size()};
    case CollectiveOp::kReduceScatter:
    case CollectiveOp::kAllReduce:
      return {.size = share(call, slots.own, slots.size()).size};
    case CollectiveOp::kBroadcast:
      return {.size = static_cast<std::size_t>(call.root) == from ? call.output.size() : 0};
    case CollectiveOp::kAllToAll:
      return segment(call, call.recv_counts, from);
    case CollectiveOp::kRecv:
      return {.size = call.output.size()};
    case CollectiveOp::kSend:
    case CollectiveOp::kBarrier:
      return {};
  }
  return {};
}

// Whether the consumer takes what has come. With an output, it comes straight there.
bool is_consumed(const CollectiveCall& call) { return call.has_consumer && call.output.empty(); }

// Whether what comes from a slot lies in several places.
bool is_scattered(const CollectiveCall& call) {
  return call.op == CollectiveOp::kAllToAll && !call.has_consumer && call.output_parts.size() != 1;
}

bool is_staged(const CollectiveCall& call) {
  return is_consumed(call) || is_scattered(call) || is_reduction(call.op);
}

// The input in parts: the call's or, where it has none, `whole`, which is then set.
const ByteParts& parts_of(const CollectiveCall& call, ByteParts& whole) {
  if (is_reduction(call.op) || call.op == CollectiveOp::kAllToAll) return call.parts;
  return whole = {call.input};
}

}  // namespace

std::vector<std::byte> inline_payload(const CollectiveCall& call, const Slots& slots,
                                      std::size_t to) {
  const auto range = outgoing(call, slots, to);
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

std::vector<std::int64_t> segments_of(const CollectiveCall& call, const Slots& slots,
                                      std::size_t to) {
  // From here on a copy takes longer than a message of its own.
  constexpr std::size_t kLongRun = 256 << 10;
  const auto range = outgoing(call, slots, to);
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

Payload::Payload(MpiCall& call, const Slots& slots, std::vector<Announced> announced,
                 const std::function<Transfer()>& make_transfer, const Buffers& buffers)
    : call_(call),
      slots_(slots),
      announced_(std::move(announced)),
      make_transfer_(make_transfer),
      scratch_(buffers.scratch),
      staged_(slots.size()),
      transfer_(make_transfer()),
      peer_parts_(slots.size()) {
  if (is_staged(call)) {
    std::size_t total = 0;
    const auto is_long = [&](std::size_t slot) {
      return slot != slots.own && incoming(call, slots, slot).size > kInlineBytes;
    };
    // Each begins at a cache line.
    const auto room = [&](std::size_t slot) {
      constexpr std::size_t kLine = 64;
      return (incoming(call, slots, slot).size + kLine - 1) / kLine * kLine;
    };
    for (std::size_t slot = 0; slot < slots.size(); ++slot) {
      if (is_long(slot)) total += room(slot);
    }
    std::byte* next = total == 0 ? nullptr : buffers.staging(total);
    for (std::size_t slot = 0; slot < slots.size(); ++slot) {
      if (is_long(slot)) staged_[slot] = std::exchange(next, next + room(slot));
    }
  }
  begin_exchange();
}

const std::byte* Payload::input_of(std::size_t slot) const {
  return staged_[slot] != nullptr ? staged_[slot] : announced_[slot].inlined.data();
}

void Payload::begin_exchange() {
  ByteParts whole;
  const auto& parts = parts_of(call_, whole);
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    if (slot == slots_.own) continue;
    const auto from = incoming(call_, slots_, slot);
    if (from.size > kInlineBytes) {
      auto* const target = is_staged(call_) ? staged_[slot] : call_.output.data() + from.begin;
      transfer_.receive(slots_.comm_ranks[slot], target, *announced_[slot].segments);
    } else if (!is_staged(call_) && from.size > 0) {
      std::ranges::copy(announced_[slot].inlined, call_.output.data() + from.begin);
    }
    const auto to = outgoing(call_, slots_, slot);
    if (to.size > kInlineBytes) {
      transfer_.send(slots_.comm_ranks[slot], parts, to.begin, segments_of(call_, slots_, slot));
    }
  }
  if (call_.op == CollectiveOp::kAllToAll && !call_.has_consumer) {
    const auto own = segment(call_, call_.send_counts, slots_.own);
    PartsCursor from(parts, own.begin);
    MutablePartsCursor to(call_.output_parts, incoming(call_, slots_, slots_.own).begin);
    copy_parts(from, to, own.size);
  }
  for (std::size_t slot = 0; slot < slots_.size() && is_reduction(call_.op); ++slot) {
    if (slot == slots_.own) continue;
    peer_parts_[slot] = {{input_of(slot), incoming(call_, slots_, slot).size}};
  }
}

// The part of the sum that each rank has made goes to all others. What this rank has sent of the
// parts that it now receives has arrived, as its owner has summed it, and transfer_ is done.
void Payload::begin_handing_out() {
  hands_out_ = true;
  transfer_ = make_transfer_();
  const ByteParts sum = {call_.output};
  const auto own = share(call_, slots_.own, slots_.size());
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    if (slot == slots_.own) continue;
    const auto part = share(call_, slot, slots_.size());
    transfer_.receive(slots_.comm_ranks[slot], call_.output.data() + part.begin,
                      {static_cast<std::int64_t>(part.size)});
    transfer_.send(slots_.comm_ranks[slot], sum, own.begin, {static_cast<std::int64_t>(own.size)});
  }
}

// How much of its share each peer has delivered.
std::size_t Payload::arrived() const {
  auto least = share(call_, slots_.own, slots_.size()).size;
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    if (staged_[slot] == nullptr) continue;
    least = std::min(least, transfer_.received_from(slots_.comm_ranks[slot]));
  }
  return least;
}

bool Payload::reduce_what_has_arrived() {
  if (!is_reduction(call_.op) || hands_out_) return false;
  const auto ready = arrived();
  if (ready == reduced_) return false;
  const auto own = share(call_, slots_.own, slots_.size());
  std::vector<PartsCursor> inputs;
  inputs.reserve(slots_.size());
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    if (slot == slots_.own) {
      inputs.emplace_back(call_.parts, own.begin + reduced_);
    } else {
      inputs.emplace_back(peer_parts_[slot], reduced_);
    }
  }
  const auto begin = call_.op == CollectiveOp::kReduceScatter ? reduced_ : own.begin + reduced_;
  const auto count = static_cast<std::int64_t>(ready - reduced_) / size_of(call_.dtype);
  reduce_parts(inputs, call_.output.data() + begin, count, call_.dtype, call_.reduce, scratch_);
  reduced_ = ready;
  return true;
}

void Payload::finish() {
  done_ = true;
  // Last, so that no rank waits for one that copies.
  if (call_.op == CollectiveOp::kAllGather && !is_consumed(call_)) {
    const auto to = incoming(call_, slots_, slots_.own);
    std::ranges::copy(call_.input, call_.output.data() + to.begin);
  }
  for (std::size_t slot = 0; slot < slots_.size() && is_scattered(call_); ++slot) {
    if (slot == slots_.own) continue;
    const auto range = incoming(call_, slots_, slot);
    const ByteParts came = {{input_of(slot), range.size}};
    PartsCursor from(came, 0);
    MutablePartsCursor to(call_.output_parts, range.begin);
    copy_parts(from, to, range.size);
  }
  if (!is_consumed(call_)) return;
  ByteParts inputs;
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    if (slot != slots_.own) {
      inputs.emplace_back(input_of(slot), incoming(call_, slots_, slot).size);
      continue;
    }
    const auto range = outgoing(call_, slots_, slot);
    ByteParts whole;
    const auto own = subparts(parts_of(call_, whole), range.begin, range.size);
    inputs.insert(inputs.end(), own.begin(), own.end());
  }
  call_.consume(inputs);
}

bool Payload::poll(bool delivered) {
  if (done_) return false;
  bool progress = has_moved_ = transfer_.poll();
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
  waits_for_delivery_ = !delivered;
  if (!delivered) return progress;
  finish();
  return true;
}

bool Payload::done_with(std::size_t slot) const {
  return transfer_.done_with(slots_.comm_ranks[slot]);
}

void Payload::cancel() {
  cancelled_ = true;
  transfer_.cancel();
}

}  // namespace moegrad::mpi
