// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/mpi/drain.h"

#include <iterator>

namespace moegrad::mpi {

void Drain::poll(MPI_Comm comm) {
  while (true) {
    int found = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    check_mpi(MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &found, &message, &status),
              "MPI_Improbe");
    if (found == 0) return;
    int size = 0;
    MPI_Get_count(&status, MPI_BYTE, &size);
    auto& taken = taken_.emplace_back();
    taken.message.resize(static_cast<std::size_t>(size));
    check_mpi(MPI_Imrecv(taken.message.data(), size, MPI_BYTE, &message, &taken.request),
              "MPI_Imrecv");
  }
}

bool Drain::is_empty() {
  for (auto taken = taken_.begin(); taken != taken_.end();) {
    int done = 0;
    check_mpi(MPI_Test(&taken->request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    taken = done != 0 ? taken_.erase(taken) : std::next(taken);
  }
  return taken_.empty();
}

}  // namespace moegrad::mpi
