// SPDX-License-Identifier: Apache-2.0
// In place of launch_mpi.cpp where Open MPI was not found.
#include "framework/distributed/mpi/launch_mpi.h"
#include "framework/runtime/error.h"

namespace moegrad {

void launch_mpi(const std::function<void(RankContext&)>& body, const LaunchOptions& options) {
  launch_mpi(1, body, options);
}

void launch_mpi(int /*world_size*/, const std::function<void(RankContext&)>& /*body*/,
                const LaunchOptions& /*options*/) {
  throw Error(
      "launch_mpi: moegrad was built without Open MPI; install libopenmpi-dev and openmpi-bin, and "
      "configure and build it again; ranks as threads need neither it nor mpirun");
}

}  // namespace moegrad
