// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <memory>
#include <string_view>
#include <vector>

#include "framework/distributed/process_group.h"

namespace moegrad {

/// Checks that all ranks of `group` (null: one rank) see the same files: as many, and of each the
/// name without its folder, the size and every byte. Ranks that see the same copies, by the files'
/// inode numbers and times of change, read them once between them; where all see the same, nothing
/// is read. Collective. ValueError, the same on all ranks:
///
///     <what>: all ranks must read the same files, rank 0 has '<name>' of <bytes> bytes, rank <r>
///     has ...
///     <what>: all ranks must read the same '<name>', got others than rank 0's on rank <r>
void check_same_files(std::string_view what, const std::shared_ptr<ProcessGroup>& group,
                      const std::vector<std::filesystem::path>& files);

}  // namespace moegrad
