// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "framework/distributed/engine/message_exchange.h"
#include "framework/distributed/engine/message_header.h"
#include "framework/distributed/engine/transport.h"
#include "framework/runtime/arena.h"

namespace moegrad {

/// A wire over messages. A short payload comes with the header; a longer one is sent after it, once
/// all have joined, so none is received into a buffer of another size.
class MessageWire final : public Wire {
 public:
  /// Note [Staging]
  /// Payloads that cannot come straight to their place are staged in a block of `arena`, which the
  /// wire keeps. Where a call needs a larger one, the rank takes it as it posts the call, and gives
  /// the smaller one back as it waits for that call: the calls before it have ended by then. So the
  /// arena's accounts follow the rank's program, and not the messages.
  MessageWire(std::unique_ptr<Messages> messages, const Slots& slots, std::shared_ptr<Arena> arena);

  void reserve(EngineCall& call) override;
  void announce(const std::shared_ptr<EngineCall>& call, const CallHeader& header) override;
  Arrival arrival(std::size_t from) override;
  bool withdraw() override { return true; }  // only headers have gone, which are the wire's own
  bool sends() const override { return true; }
  std::unique_ptr<Exchange> begin(std::size_t piece_bytes) override;
  bool has_sent(std::size_t to) override;
  bool abort(bool give_up) override;

 private:
  struct Peer {
    std::vector<std::byte> out = {}, in = {};
    std::unique_ptr<Messages::Request> sending = nullptr;
    std::unique_ptr<Messages::Request> receiving = nullptr;
    bool arrived = false;
    MessageHeader header = {};
    std::span<const std::byte> payload = {};
  };

  void count_sent(std::size_t slot, std::size_t bytes);

  std::unique_ptr<Messages> messages_;
  std::size_t own_;
  std::shared_ptr<Arena> arena_;
  std::shared_ptr<Staging> staging_;
  std::vector<std::byte> scratch_;
  std::vector<Peer> peers_;  // by slot
  std::shared_ptr<EngineCall> call_;
};

}  // namespace moegrad
