// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>

namespace moegrad {

/// Latency and rate of a modelled link between two ranks of different hosts.
struct LinkBetweenHosts {
  std::chrono::nanoseconds latency{0};
  double bytes_per_second = 0;  // 0: infinite
};

/// A slower link than memory. Each rank has one, which all that it receives shares, or sends to one
/// rank: a transfer takes latency + bytes / bandwidth if it has the link alone (Note [A link that
/// is shared]). The communication thread sleeps until a transfer is through before it hands it
/// over, so overlap with compute is visible on two cores.
struct LinkModel {
  std::chrono::nanoseconds latency{0};
  double bytes_per_second = 0;  // 0: infinite
  int slow_rank = -1;           // rank of the world that receives slow_by times as slowly
  double slow_by = 1;
  /// As if ranks [0, n), [n, 2 n), ... were on hosts of their own; 0: all on one. It models time
  /// alone: ProcessGroup::hosts() knows nothing of it.
  int ranks_per_host = 0;
  LinkBetweenHosts between_hosts = {};

  bool share_a_host(int rank, int other) const {
    return ranks_per_host == 0 || rank / ranks_per_host == other / ranks_per_host;
  }
  /// How long a transfer within a host takes that has the link alone, on a rank that is not slow.
  std::chrono::nanoseconds duration(std::int64_t bytes) const {
    auto time = latency;
    if (bytes_per_second > 0) {
      time += std::chrono::nanoseconds(
          static_cast<std::int64_t>(1e9 * static_cast<double>(bytes) / bytes_per_second));
    }
    return time;
  }
};

}  // namespace moegrad
