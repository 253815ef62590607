// SPDX-License-Identifier: Apache-2.0
#pragma once

// Ranks as processes, on one host or several: launch_mpi() and launch_ranks(). Include it beside
// moegrad.h and link moegrad::mpi. It needs no header of MPI.

#include "framework/distributed/mpi/launch_mpi.h"
#include "framework/runtime/mpi_environment.h"
