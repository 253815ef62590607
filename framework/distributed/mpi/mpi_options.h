// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include "framework/distributed/launch_options.h"

namespace moegrad {

/// How launch_mpi() runs its ranks.
struct MpiOptions : LaunchOptions {
  /// The longest message, in bytes: payloads are sent in pieces of this size. A multiple of 64, at
  /// most 1 GiB.
  std::size_t piece_bytes = std::size_t{4} << 20;
  /// Where a rank writes `last_operations.rank3.txt` when it gets SIGTERM or a collective fails;
  /// empty for nowhere. The folder must exist.
  std::string last_operations_folder = {};
};

}  // namespace moegrad
