// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/engine/memory_exchange.h"

#include <algorithm>
#include <utility>

#include "framework/distributed/engine/call_bytes.h"
#include "framework/distributed/parts_cursor.h"
#include "framework/distributed/parts_reduction.h"

namespace moegrad {

void show(MemorySide& side, std::shared_ptr<EngineCall> call, std::size_t own, std::size_t ranks) {
  side.inlined.clear();
  if (sums_at_once(*call)) {
    for (const auto& part : call->parts) {
      side.inlined.insert(side.inlined.end(), part.begin(), part.end());
    }
  }
  side.unread = is_read(*call, own) ? ranks - 1 : 0;
  side.begun = side.reading = 0;
  side.has_sum = side.executed = side.withdrawn = false;
  side.call = std::move(call);
}

MemoryExchange::MemoryExchange(std::vector<MemorySide*> sides, std::size_t own,
                               std::size_t piece_bytes, std::function<void(std::size_t)> wake)
    : sides_(std::move(sides)), own_(own), piece_bytes_(piece_bytes), wake_(std::move(wake)) {
  for_others([this](std::size_t slot) { ++sides_[slot]->begun; });
}

template <class Function>
void MemoryExchange::for_others(const Function& function) const {
  for (std::size_t slot = 0; slot < sides_.size(); ++slot) {
    if (slot != own_) function(slot);
  }
}

// Reads nothing that is another rank's.
bool MemoryExchange::is_light() const {
  const auto op = call().op;
  return op == CollectiveOp::kBarrier || op == CollectiveOp::kSend || sums_at_once(call());
}

bool MemoryExchange::can_go_on() const {
  if (!hands_out_) return true;
  return std::ranges::all_of(sides_, [](const MemorySide* side) { return side->has_sum; });
}

bool MemoryExchange::has_work() const {
  return !executed_ && !cancelled_ && !is_light() && can_go_on();
}

bool MemoryExchange::done_with(std::size_t slot) const {
  const auto& side = *sides_[slot];
  // Who has summed its own part may wait for the same rank as this one.
  return side.executed || (!can_go_on() && side.has_sum);
}

bool MemoryExchange::done() const {
  const auto& own = *sides_[own_];
  return cancelled_ ? own.reading == 0 : executed_ && own.unread == 0;
}

bool MemoryExchange::poll(EngineLock& lock, bool delivered, bool /*may_send*/) {
  if (executed_ || cancelled_ || !delivered || !can_go_on()) return false;
  if (is_light()) {
    if (sums_at_once(call())) sum_at_once();
    finish();
    return true;
  }
  for_others([this](std::size_t slot) { ++sides_[slot]->reading; });
  {
    const Unlocked moves_bytes(lock);
    try {
      step();
    } catch (...) {
      thrown_ = std::current_exception();
    }
  }
  for_others([this](std::size_t slot) {
    auto& side = *sides_[slot];
    if (--side.reading == 0 && !side.call->error.empty()) wake_(slot);
  });
  if (thrown_ != nullptr || !all_read_) return true;
  if (call().op == CollectiveOp::kAllReduce && !hands_out_) {
    pass_on_sum();
  } else {
    finish();
  }
  return true;
}

void MemoryExchange::sum_at_once() {
  std::vector<ByteParts> parts;
  std::vector<PartsCursor> inputs;
  parts.reserve(sides_.size());
  for (const auto* side : sides_) {
    parts.push_back({side->inlined});
    inputs.emplace_back(parts.back(), 0);
  }
  reduce_parts(inputs, call().output.data(), call().count, call().dtype, call().reduce, scratch_);
}

void MemoryExchange::step() {
  if (call().has_consumer) return consume();
  if (is_reduction(call().op) && !hands_out_) return reduce();
  copy();
}

void MemoryExchange::consume() {
  ByteParts inputs, whole;
  for (std::size_t slot = 0; slot < sides_.size(); ++slot) {
    const auto& peer = *sides_[slot]->call;
    if (peer.op == CollectiveOp::kAllGather) {
      inputs.push_back(peer.input);
      continue;
    }
    const auto range = outgoing(peer, slot, own_, sides_.size());
    const auto parts = subparts(parts_of(peer, whole), range.begin, range.size);
    inputs.insert(inputs.end(), parts.begin(), parts.end());
  }
  all_read_ = true;
  call().consume(inputs);
}

void MemoryExchange::reduce() {
  const auto own = share(call(), own_, sides_.size());
  const auto bytes = std::min(own.size - reduced_, piece_bytes_);
  std::vector<PartsCursor> inputs;
  inputs.reserve(sides_.size());
  for (const auto* side : sides_) inputs.emplace_back(side->call->parts, own.begin + reduced_);
  const auto begin = call().op == CollectiveOp::kReduceScatter ? reduced_ : own.begin + reduced_;
  const auto count = static_cast<std::int64_t>(bytes) / size_of(call().dtype);
  reduce_parts(inputs, call().output.data() + begin, count, call().dtype, call().reduce, scratch_);
  reduced_ += bytes;
  all_read_ = reduced_ == own.size;
}

// The next piece of what comes from the others, and from this rank itself.
void MemoryExchange::copy() {
  const auto ranks = sides_.size();
  for (auto left = piece_bytes_; left > 0 && from_ < ranks;) {
    if (hands_out_ && from_ == own_) {
      ++from_;
      continue;
    }
    const auto& peer = *sides_[from_]->call;
    ByteParts source;
    auto sent = outgoing(peer, from_, own_, ranks);
    auto got = incoming(call(), from_, own_, ranks);
    if (hands_out_) {
      sent = got = share(call(), from_, ranks);
      source = {peer.output};
    }
    const auto bytes = std::min(left, got.size - copied_);
    if (bytes > 0) {
      PartsCursor in(hands_out_ ? source : parts_of(peer, source), sent.begin + copied_);
      const MutableByteParts whole = {call().output};
      const bool in_parts = call().op == CollectiveOp::kAllToAll;
      MutablePartsCursor out(in_parts ? call().output_parts : whole, got.begin + copied_);
      if (in.data() != out.data()) copy_parts(in, out, bytes);
    }
    left -= bytes;
    copied_ += bytes;
    if (copied_ < got.size) return;
    ++from_;
    copied_ = 0;
  }
  all_read_ = from_ == ranks;
}

void MemoryExchange::pass_on_sum() {
  auto& own = *sides_[own_];
  own.has_sum = true;
  own.has_sum_since = summed_at_ = CollectiveClock::now();
  hands_out_ = true;
  all_read_ = false;
  for_others([this](std::size_t slot) { wake_(slot); });
}

void MemoryExchange::finish() {
  executed_ = sides_[own_]->executed = true;
  if (hands_out_) {
    auto last = summed_at_;
    for (const auto* side : sides_) last = std::max(last, side->has_sum_since);
    waited_ = last - summed_at_;
  }
  for_others([this](std::size_t slot) {
    if (is_read(call(), slot) && --sides_[slot]->unread == 0) wake_(slot);
  });
}

}  // namespace moegrad
