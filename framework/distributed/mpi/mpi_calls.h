// SPDX-License-Identifier: Apache-2.0
#pragma once

// The C interface of MPI alone; the C++ one is not part of MPI-3.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

namespace moegrad::mpi {

/// Error `<call>: <MPI's own text>` unless `code` is MPI_SUCCESS.
void check_mpi(int code, const char* call);

}  // namespace moegrad::mpi
