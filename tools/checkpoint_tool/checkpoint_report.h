// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <iosfwd>

namespace moegrad::tools {

// What checkpoint_tool prints. A path is a checkpoint, or a root and then means its newest one.
// Error where there is none.

/// One line per checkpoint: step, ranks that wrote it, tokens, tensors, megabytes. False if a
/// manifest cannot be read.
bool list_run(const std::filesystem::path& root, std::ostream& out);

/// Compares all files with their checksums, of one checkpoint or of all of a root. False if one is
/// damaged.
bool verify_checkpoints(const std::filesystem::path& path, std::ostream& out);

/// Compares the tensors of two checkpoints, the optimizer's apart: a line per parameter that
/// differs, with the largest difference and where. False if any does.
bool diff_checkpoints(const std::filesystem::path& a, const std::filesystem::path& b,
                      std::ostream& out);

/// Writes the model of a checkpoint by models::save_pretrained.
void export_checkpoint(const std::filesystem::path& path, const std::filesystem::path& folder,
                       std::ostream& out);

}  // namespace moegrad::tools
