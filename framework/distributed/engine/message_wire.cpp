// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/engine/message_wire.h"

#include <utility>

#include "framework/distributed/engine/call_bytes.h"

namespace moegrad {

MessageWire::MessageWire(std::unique_ptr<Messages> messages, const Slots& slots,
                         std::shared_ptr<Arena> arena)
    : messages_(std::move(messages)),
      own_(slots.own),
      arena_(std::move(arena)),
      peers_(slots.size()) {}

void MessageWire::reserve(EngineCall& call) {
  const auto bytes = staged_bytes(call, own_, peers_.size());
  if (bytes <= (staging_ == nullptr ? 0 : staging_->bytes())) return;
  call.outgrown = std::exchange(staging_, std::make_shared<Staging>(arena_, bytes));
}

void MessageWire::announce(const std::shared_ptr<EngineCall>& call, const CallHeader& header) {
  call_ = call;
  MessageHeader message;
  static_cast<CallHeader&>(message) = header;
  for (std::size_t slot = 0; slot < peers_.size(); ++slot) {
    auto& peer = peers_[slot];
    peer.arrived = false;
    if (slot == own_) continue;
    if (call->op == CollectiveOp::kAllToAll) {
      message.sends = call->send_counts[slot];
      message.expects = call->recv_counts[slot];
    }
    message.segments = segments_of(*call, own_, slot, peers_.size());
    const auto payload = inline_payload(*call, own_, slot, peers_.size());
    peer.out.resize(kHeaderBytes);
    peer.in.resize(kHeaderBytes);
    const auto size = encode(message, payload, peer.out);
    peer.receiving = messages_->receive(slot, Messages::Kind::kHeader, peer.in);
    peer.sending = messages_->send(slot, Messages::Kind::kHeader, std::span(peer.out).first(size));
    count_sent(slot, payload.size());
  }
  messages_->wake();
}

Arrival MessageWire::arrival(std::size_t from) {
  auto& peer = peers_[from];
  if (!peer.arrived) {
    if (!peer.receiving->test()) return {};
    peer.header = decode(std::span(peer.in).first(peer.receiving->size()), peer.payload);
    peer.header.request.queue = call_->queue;
    peer.receiving.reset();
    peer.arrived = true;
  }
  return {.header = &peer.header, .sends = peer.header.sends, .expects = peer.header.expects};
}

std::unique_ptr<Exchange> MessageWire::begin(std::size_t piece_bytes) {
  std::vector<MessageExchange::Announced> announced;
  for (const auto& peer : peers_) {
    announced.push_back({.inlined = peer.payload, .segments = &peer.header.segments});
  }
  return std::make_unique<MessageExchange>(
      *call_, own_, std::move(announced),
      MessageExchange::Means{
          .messages = *messages_,
          .piece_bytes = piece_bytes,
          .on_send = [this](std::size_t slot, std::size_t bytes) { count_sent(slot, bytes); },
          .staging = staging_,
          .scratch = scratch_});
}

// A message of the call, with so many bytes of its payload.
void MessageWire::count_sent(std::size_t slot, std::size_t bytes) {
  if (messages_->is_on_this_host(slot)) return;
  ++call_->host_messages;
  call_->host_bytes += static_cast<std::int64_t>(bytes);
}

bool MessageWire::has_sent(std::size_t to) {
  auto& sending = peers_[to].sending;
  if (sending != nullptr && sending->test()) sending.reset();
  return sending == nullptr;
}

bool MessageWire::abort(bool /*give_up*/) {
  for (auto& peer : peers_) peer.receiving.reset();
  return true;
}

}  // namespace moegrad
