// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "framework/distributed/engine/call_bytes.h"
#include "framework/distributed/engine/transfer.h"
#include "framework/distributed/engine/transport.h"
#include "framework/runtime/arena.h"

namespace moegrad {

/// A block of the rank's arena, for what payloads stage.
class Staging {
 public:
  Staging(std::shared_ptr<Arena> arena, std::size_t bytes);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  std::byte* data() const { return block_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<Arena> arena_;
  std::size_t bytes_;
  std::byte* block_;
};

/// How many bytes `call`, whose slot is `own` of `ranks`, stages.
std::size_t staged_bytes(const CollectiveCall& call, std::size_t own, std::size_t ranks);

/// The payload that `call`, whose slot is `own` of `ranks`, has for slot `to` and that travels in
/// the header: at most kInlineBytes.
std::vector<std::byte> inline_payload(const CollectiveCall& call, std::size_t own, std::size_t to,
                                      std::size_t ranks);

/// How what `call` has for slot `to` is cut where it does not travel in the header: long runs of
/// bytes by themselves, so that they are sent from where they lie, and short ones between them
/// together.
std::vector<std::int64_t> segments_of(const CollectiveCall& call, std::size_t own, std::size_t to,
                                      std::size_t ranks);

/// Moves what the ranks of one call give each other in messages, and makes of it what the call is
/// for. Sums run along the tree over all ranks' inputs, which each rank has from the others as they
/// are:
///
///     all_gather       each input to each rank; then the consumer, or straight into the output
///     reduce_scatter   chunk r of each input to rank r, which sums it as it arrives
///     all_reduce       the same with part r of the buffer; then each sum to each rank. A short one
///                      needs one exchange: each input to each rank, and each sums all
///     all_to_all       straight into the output; at the end there if it has several parts, or to
///                      the consumer
///     broadcast, send  straight into the output
///
/// Belongs to the rank's own thread.
class MessageExchange final : public Exchange {
 public:
  struct Means {
    Messages& messages;
    std::size_t piece_bytes;
    std::function<void(std::size_t slot, std::size_t bytes)> on_send;
    std::shared_ptr<Staging> staging;  // for what comes from others and goes further
    std::vector<std::byte>& scratch;
  };

  /// What the header of a slot's rank has said.
  struct Announced {
    std::span<const std::byte> inlined;                   // the payload, if it came with the header
    const std::vector<std::int64_t>* segments = nullptr;  // of the payload that follows
  };

  /// `announced`: by slot.
  MessageExchange(EngineCall& call, std::size_t own, std::vector<Announced> announced, Means means);

  bool poll(EngineLock& lock, bool delivered, bool may_send) override;
  bool done() const override { return done_; }
  bool done_with(std::size_t slot) const override { return transfer_.done_with(slot); }
  bool has_more_to_send() const override { return transfer_.has_more_to_send(); }
  void cancel() override;

 private:
  std::size_t size() const { return announced_.size(); }
  ByteRange to_slot(std::size_t slot) const { return outgoing(call_, own_, slot, size()); }
  ByteRange from_slot(std::size_t slot) const { return incoming(call_, slot, own_, size()); }
  ByteRange own_share() const { return share(call_, own_, size()); }
  void stage();
  void begin_exchange();
  void begin_handing_out();
  bool go_on(bool delivered, bool may_send);
  bool reduce_what_has_arrived();
  void finish();
  std::size_t arrived() const;
  const std::byte* input_of(std::size_t slot) const;

  EngineCall& call_;
  std::size_t own_;
  std::vector<Announced> announced_;
  Means means_;
  std::vector<std::byte*> staged_;  // by slot; null where nothing is staged
  Transfer transfer_;
  std::vector<ByteParts> peer_parts_;  // of a reduction
  std::size_t reduced_ = 0;            // bytes
  bool begun_ = false;
  bool hands_out_ = false;  // the second half of a long all_reduce
  bool cancelled_ = false;
  bool done_ = false;
};

}  // namespace moegrad
