// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <iosfwd>

namespace moegrad::tools {

// The output of checkpoint_tool. A path is a checkpoint, or a root, which means its newest
// checkpoint. Error if there is none.

/// One line per checkpoint: step, ranks that wrote it, tokens, tensors, megabytes. False if a
/// manifest cannot be read.
bool list_run(const std::filesystem::path& root, std::ostream& out);

/// Compares the files of one checkpoint, or of all checkpoints of a root, with their checksums.
/// False if one is damaged.
bool verify_checkpoints(const std::filesystem::path& path, std::ostream& out);

/// Compares the tensors of two checkpoints, the optimizer's tensors separately. Prints a line per
/// parameter that differs, with the largest difference and its position. False if any differs.
bool diff_checkpoints(const std::filesystem::path& a, const std::filesystem::path& b,
                      std::ostream& out);

/// Writes the model of a checkpoint by models::save_pretrained.
void export_checkpoint(const std::filesystem::path& path, const std::filesystem::path& folder,
                       std::ostream& out);

}  // namespace moegrad::tools
