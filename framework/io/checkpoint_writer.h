// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "framework/distributed/process_group.h"
#include "framework/io/folder_lock.h"
#include "framework/tensor/named_tensor.h"

namespace moegrad {

/// What a checkpoint holds.
struct CheckpointState {
  /// Contiguous ND tensors, named differently: shards, with their ShardSpec, and whole ones. Whole
  /// ones must be the same on every rank, and shards the same on every replica: their checksums are
  /// compared when they are saved.
  NamedTensors tensors = {};
  /// Texts, the same on every rank.
  std::map<std::string, std::string> values = {};
  /// Checksums of those tensors of which other ranks hold the same part, by name. Those missing are
  /// computed when the checkpoint is written; CheckpointSaver takes them when it copies the state.
  std::map<std::string, std::uint32_t> checksums = {};
};

/// The places that writing a checkpoint comes by, in this order (Note [Checkpoint folders]).
enum class CheckpointPoint : std::uint8_t {
  kCopy,             // save() was called
  kCopied,           // the state stands in the second buffer
  kFolderMade,       // rank 0 has made the temporary folder
  kTensorWritten,    // the first tensor of this rank's file
  kFileWritten,      // this rank's file, to the disk
  kFilesAgreed,      // all ranks' files
  kManifestWritten,  // from here to kOlderRemoved on rank 0 alone
  kFolderFlushed,
  kFolderRenamed,  // it is a checkpoint
  kRootFlushed,    // and remains one
  kLatestMoved,
  kOlderRemoved,
  kSaved  // every rank knows
};

struct CheckpointOptions {
  /// Newest checkpoints that stay; 0: all. Damaged ones do not count, and stay, too.
  std::int64_t keep = 2;
  /// Called on rank 0 with what could not be done beside the checkpoint, which counts all the same:
  /// folders that the file system does not flush, the link `latest`, the removal of older ones. By
  /// default it is logged as a warning. A CheckpointSaver passes each text on once.
  std::function<void(const std::string& warning)> warn = {};
  /// Keeps other programs out of the root; a save fails where the root is no longer what was
  /// locked. Null: the caller sees to that.
  const FolderLock* lock = nullptr;
  /// Called as each point is reached, from the thread that reaches it; must not throw.
  std::function<void(CheckpointPoint)> observe = {};
};

/// Whether this rank of `group` (null: the only one) writes the tensor: a shard if it is in the
/// first replica, a whole tensor if it is the first rank.
bool writes_tensor(const Tensor& tensor, const ProcessGroup* group);

/// `state.checksums`, completed.
std::map<std::string, std::uint32_t> shared_checksums(const CheckpointState& state,
                                                      const ProcessGroup* group);

/// Writes `state` as one checkpoint of `root`, which all ranks see, and returns when it is durable.
/// Collective over `group`; null for one rank. What goes wrong on one rank, such as a full disk,
/// becomes the same Error on every rank, and the earlier checkpoints stay:
///
///     checkpoint: saving step <n> failed on rank <r>: <reason>
///
/// However long the disk of a rank takes, the others wait for it (ProcessGroup::excuse()).
void write_checkpoint(const std::filesystem::path& root, std::int64_t step,
                      const CheckpointState& state, const std::shared_ptr<ProcessGroup>& group,
                      const CheckpointOptions& options = {});

}  // namespace moegrad
