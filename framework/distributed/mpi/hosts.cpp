// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/mpi/hosts.h"

#include <cstddef>

namespace moegrad::mpi {

std::vector<int> find_hosts(MPI_Comm all) {
  int rank = 0, size = 0;
  MPI_Comm_rank(all, &rank);
  MPI_Comm_size(all, &size);
  MPI_Comm neighbours = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(all, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &neighbours),
            "MPI_Comm_split_type");
  int first = rank;
  check_mpi(MPI_Bcast(&first, 1, MPI_INT, 0, neighbours), "MPI_Bcast");
  MPI_Comm_free(&neighbours);
  std::vector<int> hosts(static_cast<std::size_t>(size));
  check_mpi(MPI_Allgather(&first, 1, MPI_INT, hosts.data(), 1, MPI_INT, all), "MPI_Allgather");
  return hosts;
}

}  // namespace moegrad::mpi
