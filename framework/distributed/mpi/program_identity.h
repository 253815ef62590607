// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "framework/distributed/launch_options.h"

namespace moegrad::mpi {

/// What all ranks of a launch must have in common: the program (a checksum of its file), its
/// command line, and the options. A line for each.
std::string program_identity(int world_size, const LaunchOptions& options);

/// ValueError that names the first rank whose identity differs from rank 0's, and both lines.
void check_same_program(const std::vector<std::string>& identities);

}  // namespace moegrad::mpi
