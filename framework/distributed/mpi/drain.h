// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <list>
#include <vector>

#include "framework/distributed/mpi/mpi_calls.h"

namespace moegrad::mpi {

/// Receives what other ranks still send to calls that this rank has given up after a failure, and
/// forgets it. Else their sends would never end. Belongs to the thread that calls MPI.
class Drain {
 public:
  /// Takes what has come on `comm`, from whomever and with whatever tag.
  void poll(MPI_Comm comm);
  /// Whether nothing that it has taken is under way.
  bool is_empty();

 private:
  struct Taken {
    std::vector<std::byte> message;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  std::list<Taken> taken_;
};

}  // namespace moegrad::mpi
