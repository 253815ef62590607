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

/// A checkpoint's folder (Note [Checkpoint folders]), to be read at any number of ranks.
class CheckpointReader {
 public:
  /// Reads the manifest, and compares with it the step that the folder's name says and the sizes
  /// of the files. Error `checkpoint: <path>: <requirement>, got <what>`.
  explicit CheckpointReader(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }
  const CheckpointManifest& manifest() const { return manifest_; }

  /// Reads all files and throws Error unless their checksums are the manifest's and they hold the
  /// pieces that it says. Of several `ranks`, each reads its share of the files.
  void verify(int rank = 0, int ranks = 1) const;
  /// Fills `tensor`, contiguous ND, which is whole or the part that its ShardSpec says: reads what
  /// it holds and nothing else. ValueError for an unknown name, ShapeError and DtypeError unless
  /// the checkpoint's tensor is of that shape and dtype.
  void read(const std::string& name, Tensor tensor);
  /// Fills all; ValueError also for a tensor of the checkpoint that is not among them, and nothing
  /// has been written then.
  void read_all(const NamedTensors& tensors);

 private:
  void check_tensor(const std::string& name, const Tensor& tensor) const;
  // Opens it if need be.
  const SafetensorsFile& file(const std::string& name) const;
  // Where the file has the piece of the tensor; Error unless the file says so, too.
  const SafetensorsEntry& entry_of(const std::string& tensor, const CheckpointPiece& piece) const;

  std::filesystem::path folder_;
  CheckpointManifest manifest_;
  mutable std::map<std::string, SafetensorsFile> files_;  // opened so far
};

/// The newest checkpoint of `root` that is complete and whose files are as they were written; none
/// where there is no checkpoint at all. Collective over `group`, null for one rank: all get the
/// same. `skipped` gets, on every rank, the reason why a newer one is passed over. Error, with the
/// reason for each, if there are checkpoints and none is sound: who went on without would sooner or
/// later write over what could be saved of them.
std::optional<CheckpointReader> open_newest_checkpoint(
    const std::filesystem::path& root, const std::shared_ptr<ProcessGroup>& group,
    const std::function<void(const std::string& reason)>& skipped);

}  // namespace moegrad
