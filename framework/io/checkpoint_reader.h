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
  /// Reads the manifest and compares the sizes of the files with it. Error
  /// `checkpoint: <path>: <requirement>, got <what>`.
  explicit CheckpointReader(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }
  const CheckpointManifest& manifest() const { return manifest_; }

  /// Reads all files and throws Error unless their checksums are the manifest's. Of several
  /// `ranks`, each reads its share of the files.
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

  std::filesystem::path folder_;
  CheckpointManifest manifest_;
  std::map<std::string, SafetensorsFile> files_;  // opened so far
};

/// The newest checkpoint of `root` that is complete and whose files are as they were written; none
/// where there is none. Collective over `group`, null for one rank: all get the same. `skipped`
/// gets, on every rank, the reason why a newer one is passed over.
std::optional<CheckpointReader> open_newest_checkpoint(
    const std::filesystem::path& root, const std::shared_ptr<ProcessGroup>& group,
    const std::function<void(const std::string& reason)>& skipped);

}  // namespace moegrad
