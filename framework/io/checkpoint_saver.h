// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "framework/distributed/process_group.h"
#include "framework/io/checkpoint_writer.h"

namespace moegrad {

/// Writes checkpoints in the background: save() copies the state into a second buffer, which it
/// keeps, and returns; a thread of its own writes that to the disk, one checkpoint at a time. All
/// ranks of `group` have one, make it and call it together. The memory is counted as
/// MemoryTag::kCheckpoint.
class CheckpointSaver {
 public:
  /// `group`: all ranks; null for one.
  CheckpointSaver(std::filesystem::path root, const std::shared_ptr<ProcessGroup>& group,
                  CheckpointOptions options = {});
  /// Waits for what is being written; a failure is logged.
  ~CheckpointSaver();
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;

  /// Makes the buffer for such a state now: the first save would wait for its memory, which the
  /// system gives page by page.
  void reserve(const CheckpointState& state);
  /// Begins to save `state` as it is now. Waits for an earlier one first; if that failed, throws
  /// its Error and begins nothing.
  void save(std::int64_t step, CheckpointState state);
  /// Returns when the last save is durable; throws its Error, once.
  void wait();

 private:
  Tensor& buffer_for(std::size_t index, const Tensor& tensor);
  // The thread's: writes one checkpoint after the other.
  void write_checkpoints();

  std::filesystem::path root_;
  std::shared_ptr<ProcessGroup> group_;  // its collectives meet those of no other thread
  CheckpointOptions options_;
  std::set<std::string> said_;   // warnings
  std::vector<Tensor> buffers_;  // by the tensors' places in the state, of those it writes

  std::mutex mutex_;  // over the rest
  std::condition_variable changed_;
  bool under_way_ = false;  // step_ and state_ are the thread's meanwhile
  bool ending_ = false;
  std::int64_t step_ = 0;
  CheckpointState state_ = {};
  std::exception_ptr failure_ = nullptr;
  std::thread thread_;  // one for all: starting one takes as long as copying a megabyte
};

}  // namespace moegrad
