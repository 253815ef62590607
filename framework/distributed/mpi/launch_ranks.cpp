// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/launch.h"
#include "framework/distributed/mpi/launch_mpi.h"
#include "framework/runtime/mpi_environment.h"

namespace moegrad {

void launch_ranks(int world_size, const std::function<void(RankContext&)>& body,
                  const LaunchOptions& options) {
  if (mpi_environment()) return launch_mpi(world_size, body, options);
  launch(world_size, body, options);
}

}  // namespace moegrad
