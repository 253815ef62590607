// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "framework/distributed/mpi/mpi_call.h"
#include "framework/distributed/mpi/transfer.h"

namespace moegrad::mpi {

/// The ranks of a call, by slot: those of the group, or sender and receiver.
struct Slots {
  std::vector<int> world_ranks;
  std::vector<int> comm_ranks;  // in the communicator
  std::size_t own = 0;

  std::size_t size() const { return world_ranks.size(); }
};

/// The payload that `call` has for slot `to` and that travels in the header: at most kInlineBytes.
std::vector<std::byte> inline_payload(const CollectiveCall& call, const Slots& slots,
                                      std::size_t to);

/// How what `call` has for slot `to` is cut where it does not travel in the header: long runs of
/// bytes by themselves, so that they are sent from where they lie, and short ones between them
/// together.
std::vector<std::int64_t> segments_of(const CollectiveCall& call, const Slots& slots,
                                      std::size_t to);

/// Moves what the ranks of one call give each other, and makes of it what the call is for. Sums run
/// along the tree over all ranks' inputs, which each rank has from the others as they are:
///
///     all_gather       each input to each rank; then the consumer, or straight into the output
///     reduce_scatter   chunk r of each input to rank r, which sums it as it arrives
///     all_reduce       the same with part r of the buffer; then each sum to each rank. A short one
///                      needs one exchange: each input to each rank, and each sums all
///     all_to_all       straight into the output; at the end there if it has several parts, or to
///                      the consumer
///     broadcast, send  straight into the output
///
/// Belongs to the thread that calls MPI.
class Payload {
 public:
  struct Buffers {
    /// Memory of the given size, for what comes from peers and goes further.
    std::function<std::byte*(std::size_t)> staging;
    std::vector<std::byte>& scratch;
  };

  /// What the header of a slot's rank has said.
  struct Announced {
    std::span<const std::byte> inlined;                   // the payload, if it came with the header
    const std::vector<std::int64_t>* segments = nullptr;  // of the payload that follows
  };

  /// `announced`: by slot.
  Payload(MpiCall& call, const Slots& slots, std::vector<Announced> announced,
          const std::function<Transfer()>& make_transfer, const Buffers& buffers);

  /// True if it got further. Throws what the consumer throws. `delivered`: whether a modelled link
  /// has delivered; until then nothing is handed over or done.
  bool poll(bool delivered);
  bool done() const { return done_; }
  /// Whether poll() has just sent or taken something.
  bool has_moved() const { return has_moved_; }
  /// Whether everything is there, and only the modelled link has not delivered yet.
  bool waits_for_delivery() const { return waits_for_delivery_; }
  bool done_with(std::size_t slot) const;
  /// After a failure: takes back what can be, and no longer computes. done() says when no message
  /// is under way.
  void cancel();

 private:
  void begin_exchange();
  void begin_handing_out();
  bool reduce_what_has_arrived();
  void finish();
  std::size_t arrived() const;
  const std::byte* input_of(std::size_t slot) const;

  MpiCall& call_;
  const Slots& slots_;
  std::vector<Announced> announced_;
  const std::function<Transfer()>& make_transfer_;
  std::vector<std::byte>& scratch_;
  std::vector<std::byte*> staged_;  // by slot; null where nothing is staged
  Transfer transfer_;
  std::vector<ByteParts> peer_parts_;  // of a reduction
  std::size_t reduced_ = 0;            // bytes
  bool hands_out_ = false;             // the second half of a long all_reduce
  bool cancelled_ = false;
  bool done_ = false;
  bool waits_for_delivery_ = false;
  bool has_moved_ = false;
};

}  // namespace moegrad::mpi
