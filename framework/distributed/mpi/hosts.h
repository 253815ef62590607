// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "framework/distributed/mpi/mpi_calls.h"

namespace moegrad::mpi {

/// The host of each rank of `all`, as the lowest rank there. Processes share a host where they can
/// share memory. Collective over `all`.
std::vector<int> find_hosts(MPI_Comm all);

}  // namespace moegrad::mpi
