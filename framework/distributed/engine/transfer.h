// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "framework/distributed/collective_call.h"
#include "framework/distributed/parts_cursor.h"

namespace moegrad {

/// Sends and receives messages between the ranks of one line, by slot. Those of one kind from one
/// slot arrive in the order in which they were sent, into the receives in their order.
class Messages {
 public:
  enum class Kind : std::uint8_t { kHeader, kPayload };

  /// A message under way, whose bytes must stay where they are until it has ended.
  class Request {
   public:
    /// Takes a receive back to which no message has come.
    virtual ~Request() = default;
    /// Whether it has ended.
    virtual bool test() = 0;
    /// After its end: how many bytes came.
    virtual std::size_t size() const = 0;
    /// Asks for its end, where no message has come to it.
    virtual void cancel() = 0;
  };

  virtual ~Messages() = default;

  virtual std::unique_ptr<Request> send(std::size_t slot, Kind kind,
                                        std::span<const std::byte> bytes) = 0;
  virtual std::unique_ptr<Request> receive(std::size_t slot, Kind kind,
                                           std::span<std::byte> bytes) = 0;
  virtual bool is_on_this_host(std::size_t slot) const = 0;
  /// The other ranks have something to take.
  virtual void wake() = 0;
};

/// Moves the payload of a call in messages. What goes to one slot is a stream of segments, which
/// both sides know, each cut into pieces of at most `piece_bytes`, of which kWindow are under way
/// at a time. Pieces between two ranks arrive in the order in which they were sent, so they need no
/// number.
class Transfer {
 public:
  /// `on_send`: called with the slot and the size of each piece that is sent.
  Transfer(Messages& messages, std::size_t piece_bytes,
           std::function<void(std::size_t, std::size_t)> on_send);

  /// The bytes of `parts` from `begin` on, which must stay as they are until done(). A segment that
  /// lies in several parts is copied together.
  void send(std::size_t slot, const ByteParts& parts, std::size_t begin,
            const std::vector<std::int64_t>& segments);
  void receive(std::size_t slot, std::byte* to, const std::vector<std::int64_t>& segments);

  /// Posts and completes what can be; true if it got further. Without `may_send`, sends no more.
  bool poll(bool may_send);
  bool done() const { return left_ == 0; }
  bool has_more_to_send() const;
  /// How much of what comes from `slot` has arrived, counted from its beginning.
  std::size_t received_from(std::size_t slot) const;
  /// Whether all bytes to and from `slot` have gone.
  bool done_with(std::size_t slot) const;
  /// Takes back the receives to which no message has come yet. The others go on.
  void cancel();

 private:
  static constexpr std::size_t kWindow = 4;

  struct Piece {
    std::unique_ptr<Messages::Request> request = nullptr;
    std::size_t bytes = 0;
    std::vector<std::byte> packed = {};  // where the bytes lie in several parts
    bool done = false;
  };
  struct Stream {
    std::size_t slot = 0;
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

  Messages& messages_;
  std::size_t piece_bytes_;
  std::function<void(std::size_t, std::size_t)> on_send_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::size_t left_ = 0;  // streams that are not done
  bool cancelled_ = false;
};

}  // namespace moegrad
