// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

namespace moegrad {

// Note [Checkpoint folders]
// The checkpoints of a run are stored in one folder, its root:
//
//     root/step-00000040/manifest.json           CheckpointManifest
//                        rank-00000.safetensors  what rank 0 wrote; one file per rank
//     root/step-00000060/...
//     root/latest                                link to the newest, for people and tools
//     root/.step-00000080.tmp                    being written, replaced or removed
//
// A checkpoint is written under its temporary name: files, each flushed to the disk, then the
// manifest, then the folder itself. Renaming makes it a checkpoint in one step. Flushing the root
// makes the rename durable. Then `latest` moves. So whenever a process or the machine dies, a
// folder with the name of a checkpoint is complete. Readers take the newest folder, not the one
// that `latest` names.

struct CheckpointFolder {
  std::int64_t step = 0;
  std::filesystem::path path = {};
};

inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr const char* kLatestLink = "latest";

/// The checkpoints of a root, newest first; none if there is no such folder.
std::vector<CheckpointFolder> list_checkpoints(const std::filesystem::path& root);

/// Removes what killed processes left half written or half removed. No other process may write to
/// the root meanwhile.
void remove_leftovers(const std::filesystem::path& root);

/// The step in a folder's name; none if it is not the name of a checkpoint.
std::optional<std::int64_t> step_of_folder(const std::filesystem::path& folder);

/// Whether a folder has a manifest.
bool is_checkpoint(const std::filesystem::path& folder);
/// Whether a path, which need not exist, leads to a checkpoint or into one.
bool is_in_checkpoint(const std::filesystem::path& path);

/// The steps that put a checkpoint into its root, for one process at a time. Each throws Error
/// `checkpoint: cannot <step> <path>: <reason>`. The functions that flush return an error code if
/// the file system cannot flush folders (flush_folder()).
class CheckpointCommit {
 public:
  CheckpointCommit(std::filesystem::path root, std::int64_t step);

  /// The folder to write the files into.
  const std::filesystem::path& temporary() const { return temporary_; }
  /// Makes the root and the temporary folder. Removes what earlier processes left half done.
  void begin() const;
  std::error_code flush_folder() const;
  /// Gives the folder its name. Replaces an earlier folder of the same step.
  void rename_folder() const;
  std::error_code flush_root() const;
  void move_latest() const;
  /// Removes all checkpoints except the newest `keep` of this and earlier steps. Later ones stay.
  /// Unsound checkpoints neither count nor are removed: a checkpoint counts if `opens` is true, and
  /// is removed only if `is_sound` is true.
  using Test = std::function<bool(const std::filesystem::path& folder)>;
  void remove_older(std::int64_t keep, const Test& opens, const Test& is_sound) const;
  /// Removes the temporary folder as far as it can.
  void abandon() const noexcept;

 private:
  std::filesystem::path root_;
  std::int64_t step_;
  std::filesystem::path path_;
  std::filesystem::path temporary_;
};

}  // namespace moegrad
