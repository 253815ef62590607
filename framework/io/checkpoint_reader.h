// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "framework/distributed/process_group.h"
#include "framework/io/checkpoint_manifest.h"
#include "framework/io/safetensors.h"
#include "framework/tensor/named_tensor.h"

namespace moegrad {

/// Reads a checkpoint's folder (Note [Checkpoint folders]) at any number of ranks.
class CheckpointReader {
 public:
  /// Reads the manifest, and compares the step in the folder's name and the sizes of the files with
  /// it. Error `checkpoint: <path>: <requirement>, got <what>`.
  explicit CheckpointReader(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }
  const CheckpointManifest& manifest() const { return manifest_; }

  /// Reads all files. Throws Error unless they have the manifest's checksums and contain the pieces
  /// that it lists. With several `ranks`, each reads its share of the files.
  void verify(int rank = 0, int ranks = 1) const;
  /// Fills `tensor`, which is contiguous ND and either whole or the part that its ShardSpec
  /// describes. Reads only the elements of `tensor`. ValueError for an unknown name, ShapeError and
  /// DtypeError unless the checkpoint's tensor has that shape and dtype.
  void read(const std::string& name, Tensor tensor);
  /// Fills all tensors. ValueError also if the checkpoint has a tensor that is not among them; then
  /// nothing has been written.
  void read_all(const NamedTensors& tensors);

 private:
  void check_tensor(const std::string& name, const Tensor& tensor) const;
  // Opens the file if it is not open.
  const SafetensorsFile& file(const std::string& name) const;
  // The tensor's piece in its file. Error unless the file agrees with the manifest.
  const SafetensorsEntry& entry_of(const std::string& tensor, const CheckpointPiece& piece) const;

  std::filesystem::path folder_;
  CheckpointManifest manifest_;
  mutable std::map<std::string, SafetensorsFile> files_;  // opened so far
};

/// The newest checkpoint of `root` that is complete and whose files are as they were written; none
/// if there is no checkpoint at all. Collective over `group` (null for one rank): all ranks get the
/// same checkpoint. For each newer checkpoint that is passed over, `skipped`, if there is one, gets
/// the reason, on every rank.
///
/// Error, with the reason for each, if there are checkpoints but none is sound. A run that went on
/// without them would sooner or later overwrite what could be saved of them. Error also if ranks
/// see different folders: if the manifest is not the same on all, or if rank 0 sees no checkpoint
/// and another rank does.
std::optional<CheckpointReader> open_newest_checkpoint(
    const std::filesystem::path& root, const std::shared_ptr<ProcessGroup>& group,
    const std::function<void(const std::string& reason)>& skipped = {});

}  // namespace moegrad
