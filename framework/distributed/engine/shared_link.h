// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "framework/distributed/collective_clock.h"
#include "framework/distributed/link_model.h"

namespace moegrad {

/// What one transfer of a rank takes of its modelled link.
struct LinkLoad {
  std::int64_t bytes = 0;          // from ranks of the same host
  std::int64_t bytes_between = 0;  // from other hosts
  bool crosses_hosts = false;      // whether a rank of another host takes part
};

/// The link of one rank in a LinkModel, which all its transfers share. It computes when each is
/// delivered from the times that it is told; it waits for nothing.
///
/// Note [A link that is shared]
/// A link moves one piece of one transfer at a time. Then the next piece is of the transfer of
/// highest priority, and among equal ones they take turns. So two transfers at once take the sum of
/// their times, and one of higher priority has the link after a piece of the other at most. The
/// latency comes after the last piece and keeps nobody from the link. The links within a host and
/// between hosts are two, each with its own rate; a transfer over both is delivered when the later
/// one is through.
class SharedLink {
 public:
  using TimePoint = CollectiveClock::time_point;

  SharedLink(const LinkModel& model, int rank, std::size_t piece_bytes);

  /// A transfer begins; returns its number. Times never decrease from call to call.
  std::uint64_t begin(const LinkLoad& load, int priority, TimePoint now);
  /// When it is delivered, if nothing else begins before.
  TimePoint delivery(std::uint64_t transfer, TimePoint now);
  /// How long it takes a rank that is not slow and has its link alone.
  CollectiveClock::duration alone(std::uint64_t transfer) const;
  /// It was delivered, or ends otherwise.
  void end(std::uint64_t transfer);

 private:
  struct Waiting {
    std::uint64_t transfer = 0;
    std::int64_t bytes = 0;  // left
    int priority = 0;
  };
  /// The link of one tier.
  struct Lane {
    double bytes_per_second = 0;  // 0: infinite
    TimePoint free_at = {};       // when the pieces that have begun are through
    std::vector<Waiting> waiting = {};
    std::optional<Waiting> had_last = {};  // the last piece, and has more

    bool is_idle() const { return waiting.empty() && !had_last; }
    void add(const Waiting& transfer, TimePoint now);
    void remove(std::uint64_t transfer);
    /// Moves the next piece; the transfer that is through with it, if one is.
    std::optional<std::uint64_t> move_piece(std::size_t piece_bytes);
    bool has(std::uint64_t transfer) const;
  };
  struct Transfer {
    TimePoint through;  // the lanes that it has left
    CollectiveClock::duration latency{0};
    CollectiveClock::duration alone{0};
  };

  void advance(TimePoint now);

  LinkModel model_;
  double slow_by_;
  std::size_t piece_bytes_;
  Lane within_, between_;
  std::uint64_t begun_ = 0;
  std::map<std::uint64_t, Transfer> transfers_;
};

}  // namespace moegrad
