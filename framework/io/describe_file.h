// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include "framework/io/checkpoint_manifest.h"

namespace moegrad {

/// Size and CRC-32C of a file, read from beginning to end. Error
/// `checkpoint: <path>: must be readable, got <reason>`.
CheckpointFile describe_file(const std::filesystem::path& path);

}  // namespace moegrad
