// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "framework/distributed/collective_clock.h"
#include "framework/distributed/mpi/mpi_calls.h"

namespace moegrad::mpi {

/// Wakes the threads that call MPI, each other's on one host, and this process's own.
///
/// Note [Doorbells]
/// MPI wakes nobody when a message comes: who waits for one must look again and again, and a rank
/// that waits for a slower one would spend a tenth of a core's time on naps. Therefore each
/// process has a doorbell in memory that the processes of a host share. Who has sent something to
/// another process of the host rings there, and who waits for that sleeps until then. Naps remain
/// for what comes from other hosts, and while payloads move, for which MPI sends messages of its
/// own.
///
/// The memory is POSIX's and not a window of MPI-3: as soon as Open MPI has one, each of its calls
/// also looks after one-sided transfers, and a barrier takes 13 us instead of 8.
class Doorbells {
 public:
  /// Collective over `all`.
  explicit Doorbells(MPI_Comm all);
  Doorbells(const Doorbells&) = delete;
  Doorbells& operator=(const Doorbells&) = delete;

  /// Whether this process can ring at the process of `rank`, and the other here: both are on one
  /// host, which has room for the memory.
  bool reach(int rank) const { return bells_[static_cast<std::size_t>(rank)] != nullptr; }
  bool reach_all() const;
  /// The host of each rank, as the lowest rank there. Processes share a host where they can share
  /// memory.
  const std::vector<int>& hosts() const { return hosts_; }
  /// Nothing where it cannot. By any thread.
  void ring(int rank);
  void ring_all();
  /// At this process. By any thread.
  void ring_own() { ring(*own_); }

  /// How often it has rung at this process.
  std::uint32_t rings() const { return own_->rings; }
  /// Sleeps until `until`, or until it has rung once more than `rings` times. By one thread.
  void sleep(std::uint32_t rings, CollectiveClock::time_point until);

 private:
  struct Bell {
    alignas(64) std::atomic<std::uint32_t> rings;
    std::atomic<std::uint32_t> sleeps;
  };
  static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

  static void ring(Bell& bell);

  Bell private_ = {};
  Bell* own_ = &private_;
  std::vector<int> hosts_;        // by rank
  std::vector<Bell*> bells_;      // by rank; null on another host
  std::shared_ptr<void> memory_;  // of the host's bells
};

}  // namespace moegrad::mpi
