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

/// Writes checkpoints in the background. save() copies the state into a second buffer, which it
/// keeps, and returns. A separate thread writes that buffer to the disk, one checkpoint at a time.
/// Every rank of `group` has a saver; all ranks make it and call it together. The memory counts as
/// MemoryTag::kCheckpoint.
class CheckpointSaver {
 public:
  /// `group`: all ranks; null for one.
  CheckpointSaver(std::filesystem::path root, const std::shared_ptr<ProcessGroup>& group,
                  CheckpointOptions options = {});
  /// Waits for the checkpoint that is being written. A failure is logged.
  ~CheckpointSaver();
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;

  /// Makes the buffer for such a state now. Otherwise the first save waits for its memory, which
  /// the system gives page by page.
  void reserve(const CheckpointState& state);
  /// Begins to save `state` as it is now. Waits for an earlier one first; if that failed, throws
  /// its Error and begins nothing. Warns of a tensor of a module's state_dict() that the module no
  /// longer has, since another was assigned to the buffer (Note [What is registered]).
  void save(std::int64_t step, CheckpointState state);
  /// Returns when the last save is durable; throws its Error, once.
  void wait();

 private:
  Tensor& buffer_for(std::size_t index, const Tensor& tensor);
  // Runs on the thread: writes one checkpoint after the other.
  void write_checkpoints();

  std::filesystem::path root_;
  std::shared_ptr<ProcessGroup> group_;  // no other thread uses it
  CheckpointOptions options_;
  std::set<std::string> logged_;  // warnings
  std::vector<Tensor> buffers_;   // of the tensors that it writes, by position in the state

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  bool under_way_ = false;  // meanwhile step_ and state_ belong to the thread
  bool ending_ = false;
  std::int64_t step_ = 0;
  CheckpointState state_ = {};
  std::exception_ptr failure_ = nullptr;
  std::thread thread_;  // kept, because starting one takes as long as copying a megabyte
};

}  // namespace moegrad
