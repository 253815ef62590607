// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "framework/distributed/mpi/call_header.h"
#include "framework/distributed/mpi/mpi_call.h"
#include "framework/distributed/mpi/payload.h"
#include "framework/runtime/arena.h"

namespace moegrad::mpi {

class MpiHub;

/// Memory that a line keeps for what its payloads stage, counted in the rank's arena.
class Staging {
 public:
  explicit Staging(std::shared_ptr<Arena> arena) : arena_(std::move(arena)) {}
  ~Staging() { release(); }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  std::byte* get(std::size_t bytes);

 private:
  void release();

  std::shared_ptr<Arena> arena_;
  std::byte* block_ = nullptr;
  std::int64_t bytes_ = 0;
};

/// An ordered line of calls, which are executed one after the other. The oldest exchanges headers
/// with all other ranks of its slots. When they agree, it moves its payload.
///
/// Belongs to the thread that calls MPI; where it needs the hub's mutex, it takes it.
class Line {
 public:
  struct Tags {
    int header_out = 0;
    int header_in = 0;
    int payload = 0;
  };

  Line(MpiHub& hub, LineKey key, Slots slots, MPI_Comm comm, Tags tags);

  void add(std::shared_ptr<MpiCall> call);
  /// Carries the oldest call on; true if it got further. Lowers `wake_at` to when it must be called
  /// at the latest.
  bool poll(CollectiveClock::time_point now, CollectiveClock::time_point& wake_at);
  bool empty() const { return calls_.empty(); }
  /// Whether the oldest call waits for other ranks, and not for a point in time.
  bool waits_for_messages() const;
  /// Whether it needs no poll before a point in time, or before a rank rings.
  bool will_be_woken() const;
  /// No call is there, and no header is under way: the line can be forgotten.
  bool is_idle() { return calls_.empty() && phase_ == Phase::kIdle && headers_sent(); }

  /// What the rank `world_rank` says about a call for which the line waits (MpiHub::ask).
  struct Answer {
    std::int64_t sequence = 0;
    CollectiveClock::duration excused{0};
    bool has_issued = false;
    bool has_left = false;
  };
  void hear(int world_rank, const Answer& answer);
  /// The rank has left: asks it at once whether what the line waits for can still come.
  void ask_at_once();

  /// After a failure: ends what can be ended. True when no message of the line is under way.
  /// `abandoned`: this process calls MPI no more.
  bool abort(bool abandoned);

  /// The header that slot `slot` has sent for the call that is under way.
  const CallHeader& header_of(std::size_t slot) const { return peers_[slot].header; }

 private:
  enum class Phase { kIdle, kHeaders, kDelayed, kTransfer };
  struct Peer {
    std::vector<std::byte> out, in;
    MPI_Request sending = MPI_REQUEST_NULL;
    MPI_Request receiving = MPI_REQUEST_NULL;
    bool arrived = false;
    CallHeader header;
    std::span<const std::byte> payload;
    CollectiveClock::duration excused{0};
    bool asked = false;  // and has not answered
  };

  bool send_headers(MpiCall& call);
  bool receive_headers(MpiCall& call);
  std::string disagreement(const MpiCall& call, std::size_t slot) const;
  bool meet(MpiCall& call, CollectiveClock::time_point now);
  bool begin_payload(MpiCall& call);
  void count_sent(std::size_t slot, std::size_t payload);
  void end_call(MpiCall& call, std::exception_ptr thrown);
  bool watch_headers(MpiCall& call, CollectiveClock::time_point& wake_at);
  void give_up_payload(MpiCall& call);
  bool headers_sent();
  std::vector<int> ranks_that(bool arrived) const;
  CollectiveClock::duration deadline() const;

  MpiHub& hub_;
  LineKey key_;
  Slots slots_;
  MPI_Comm comm_;
  Tags tags_;
  std::function<Transfer()> make_transfer_;
  std::deque<std::shared_ptr<MpiCall>> calls_;  // oldest first
  Staging staging_;
  std::vector<std::byte> scratch_;

  // The state of the oldest call.
  Phase phase_ = Phase::kIdle;
  std::vector<Peer> peers_;  // by slot
  std::unique_ptr<Payload> payload_;
  CollectiveClock::duration waits_since_{0};   // running time
  CollectiveClock::duration asks_at_{0};       // running time
  CollectiveClock::duration expires_{0};       // running time by which the payload must have gone
  CollectiveClock::time_point begins_at_;      // by jitter
  CollectiveClock::time_point usually_there_;  // by the modelled link, on a rank that is not slow
  CollectiveClock::time_point delivered_at_;   // by the modelled link, here
  bool cancelled_ = false;
};

}  // namespace moegrad::mpi
