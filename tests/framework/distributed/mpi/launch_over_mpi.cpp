// SPDX-License-Identifier: Apache-2.0
// In place of the library's launch(): the tests of ranks as threads run here on ranks as processes.
#include "framework/distributed/launch.h"
#include "framework/distributed/mpi/launch_mpi.h"

namespace moegrad {

void launch(int world_size, const std::function<void(RankContext&)>& body,
            const LaunchOptions& options) {
  LaunchOptions over_mpi;
  static_cast<LaunchOptions&>(over_mpi) = options;
  // Tests send little, and what is sent in pieces should be.
  over_mpi.piece_bytes = 4096;
  launch_mpi(world_size, body, over_mpi);
}

}  // namespace moegrad
