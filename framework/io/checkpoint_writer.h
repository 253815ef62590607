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

/// What a checkpoint contains.
struct CheckpointState {
  /// Contiguous ND tensors with different names: shards, with their ShardSpec, and whole tensors.
  /// Whole tensors must be the same on every rank, and shards the same on every replica. Their
  /// checksums are compared when they are saved. Ranks may have shards of different tensors, as the
  /// stages of a pipeline do.
  NamedTensors tensors = {};
  /// Texts, the same on every rank.
  std::map<std::string, std::string> values = {};
  /// Checksums, by name, of the tensors whose part other ranks hold as well. Checksums that are
  /// missing are computed when the checkpoint is written. CheckpointSaver computes them when it
  /// copies the state.
  std::map<std::string, std::uint32_t> checksums = {};
};

/// The points that writing a checkpoint reaches, in this order (Note [Checkpoint folders]).
enum class CheckpointPoint : std::uint8_t {
  kCopy,             // save() was called
  kCopied,           // the state is in the second buffer
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
  /// The number of newest checkpoints that stay; 0: all. One that cannot be opened, since its
  /// manifest is damaged or a file is of another size, does not count. No damaged one is removed;
  /// the checksums of older ones are compared for that, those of the ones that stay are not.
  std::int64_t keep = 2;
  /// Called on rank 0 when the checkpoint is valid but something else could not be done: the file
  /// system does not flush folders, or the link `latest` or the removal of older checkpoints
  /// failed. By default the text is logged as a warning. A CheckpointSaver passes each text on
  /// once.
  std::function<void(const std::string& warning)> warn = {};
  /// Keeps other programs out of the root. A save fails if the root is no longer the folder that
  /// was locked. If null, the caller must keep other programs out.
  const FolderLock* lock = nullptr;
  /// Called as each point is reached, from the thread that reaches it; must not throw.
  std::function<void(CheckpointPoint)> observe = {};
};

/// Whether this rank of `group` (null: the only one) writes the tensor: a shard if it is in the
/// first replica, a whole tensor if it is the first rank.
bool writes_tensor(const Tensor& tensor, const ProcessGroup* group);

/// `state.checksums`, with the missing ones added.
std::map<std::string, std::uint32_t> shared_checksums(const CheckpointState& state,
                                                      const ProcessGroup* group);

/// Writes `state` as one checkpoint of `root`, which all ranks see, and returns when it is durable.
/// Collective over `group`; null for one rank. A failure on one rank, such as a full disk, becomes
/// the same Error on every rank, and the earlier checkpoints stay:
///
///     checkpoint: saving step <n> failed on rank <r>: <reason>
///
/// The other ranks wait for a rank's disk however long it takes (ProcessGroup::excuse()).
void write_checkpoint(const std::filesystem::path& root, std::int64_t step,
                      const CheckpointState& state, const std::shared_ptr<ProcessGroup>& group,
                      const CheckpointOptions& options = {});

}  // namespace moegrad
