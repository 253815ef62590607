// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace moegrad::training {

/// What a program does with a path that it is given.
enum class PathKind : std::uint8_t {
  kInput,         // reads the file or folder
  kOutput,        // writes the file, in place of an earlier one
  kOutputLog,     // writes the file and keeps an earlier one as <path>.<number>
  kOutputFolder,  // creates new files in the folder
  kExportFolder,  // writes files of fixed names into the folder
};

struct NamedPath {
  std::string name;  // of the option, for messages
  std::string path;
  PathKind kind;
};

/// UsageError if an output is the same file as an input or another output, whatever its name; if it
/// is a checkpoint or inside one; if it has a name under which an earlier output is kept; or if an
/// export writes over it.
/// Several outputs may go to the same device or pipe.
void check_paths(const std::vector<NamedPath>& paths);

}  // namespace moegrad::training
