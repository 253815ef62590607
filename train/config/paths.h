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

/// ValueError if an output is an input or another output, by whatever name, is or would go into
/// a checkpoint, or has a name under which an earlier output is kept. Devices and pipes may be
/// several outputs.
void check_paths(const std::vector<NamedPath>& paths);

}  // namespace moegrad::training
