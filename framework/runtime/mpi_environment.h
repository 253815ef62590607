// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

namespace moegrad {

/// Which of how many processes this one is.
struct MpiEnvironment {
  int rank = 0;
  int size = 1;
  const char* rank_variable = "";  // of the environment, that says so
  const char* size_variable = "";
};

/// Where mpirun or `srun --mpi=pmix` has started this process, also the mpirun of an MPI that
/// launch_mpi() refuses; nothing where neither has. It reads environment variables and calls
/// nothing of MPI, so a program can ask before its first launch.
std::optional<MpiEnvironment> mpi_environment();

/// How many ranks a program runs that has not been told: as many as there are processes, or
/// `otherwise` where the ranks are threads.
int default_world_size(int otherwise);

/// Whether this process is the one that prints and writes: the only one, or that of rank 0.
bool is_first_process();

}  // namespace moegrad
