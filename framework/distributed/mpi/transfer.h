// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "framework/distributed/collective_call.h"
#include "framework/distributed/mpi/mpi_calls.h"
#include "framework/distributed/parts_cursor.h"

namespace moegrad::mpi {

/// Moves bytes between this process and others over one communicator and tag. What goes to one peer
/// is a stream of segments, which both sides know, each cut into messages of at most `piece_bytes`,
/// of which kWindow are under way at a time: no message is longer than MPI can count. Messages
/// between two ranks arrive in the order in which they were sent, so they need no number.
///
/// Belongs to the thread that calls MPI.
class Transfer {
 public:
  /// `on_send`: called with the peer and the size of each message that is sent.
  Transfer(MPI_Comm comm, int tag, std::size_t piece_bytes,
           std::function<void(int, std::size_t)> on_send);

  /// The bytes of `parts` from `begin` on, which must stay as they are until done(). A segment that
  /// lies in several parts is copied together.
  void send(int peer, const ByteParts& parts, std::size_t begin,
            const std::vector<std::int64_t>& segments);
  void receive(int peer, std::byte* to, const std::vector<std::int64_t>& segments);

  /// Posts and completes what can be; true if it got further.
  bool poll();
  bool done() const { return left_ == 0; }
  /// How much of what comes from `peer` has arrived, counted from its beginning.
  std::size_t received_from(int peer) const;
  /// Whether all bytes to and from `peer` have gone.
  bool done_with(int peer) const;
  /// Takes back the receives to which no message has come yet. The others go on.
  void cancel();

 private:
  static constexpr std::size_t kWindow = 4;

  struct Piece {
    MPI_Request request = MPI_REQUEST_NULL;
    std::size_t bytes = 0;
    std::vector<std::byte> packed = {};  // where the bytes lie in several parts
    bool done = false;
  };
  struct Stream {
    int peer = 0;
    bool sends = false;
    ByteParts parts = {};
    std::unique_ptr<PartsCursor> source = nullptr;
    std::byte* target = nullptr;
    std::vector<std::int64_t> segments = {};
    std::size_t size = 0;
    std::size_t segment = 0;  // that is being posted
    std::size_t posted_of_segment = 0;
    std::size_t posted = 0;
    std::size_t completed = 0;  // without gaps
    std::deque<Piece> pieces = {};
  };

  void add(std::unique_ptr<Stream> stream);
  void post(Stream& stream);

  MPI_Comm comm_;
  int tag_;
  std::size_t piece_bytes_;
  std::function<void(int, std::size_t)> on_send_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::size_t left_ = 0;  // streams that are not done
  bool cancelled_ = false;
};

}  // namespace moegrad::mpi
