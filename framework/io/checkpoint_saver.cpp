// SPDX-License-Identifier: Apache-2.0
#include "framework/io/checkpoint_saver.h"

#include <numeric>
#include <string>
#include <system_error>
#include <utility>

#include "framework/runtime/arena.h"
#include "framework/runtime/error.h"
#include "framework/runtime/exception_message.h"
#include "framework/runtime/grad_mode.h"
#include "framework/runtime/log.h"
#include "framework/runtime/rank_context.h"
#include "framework/runtime/same_rank.h"
#include "framework/tensor/fill.h"
#include "framework/tensor/meta.h"
#include "framework/tensor/tensor_impl.h"

namespace moegrad {
namespace {

std::shared_ptr<ProcessGroup> group_of_its_own(const std::shared_ptr<ProcessGroup>& group) {
  if (group == nullptr) return nullptr;
  std::vector<int> ranks(static_cast<std::size_t>(group->size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return group->subgroup(ranks, "checkpoint");
}

bool fits(const Tensor& buffer, const Tensor& tensor) {
  return buffer.shape() == tensor.shape() && buffer.dtype() == tensor.dtype() &&
         buffer.shard_spec() == tensor.shard_spec();
}

// Whether nothing but a state dict holds the values of a module's tensor: its owner was assigned
// another one.
bool is_stale(const Tensor& tensor) {
  const auto& impl = *tensor.impl();
  return impl.detached && !impl.storage->name().empty() && impl.storage.use_count() == 1;
}

Tensor without_bytes(const Tensor& tensor) {
  const MetaGuard no_bytes;
  Tensor same = zeros_like(tensor);
  same.set_shard_spec(tensor.shard_spec());
  return same;
}

}  // namespace

CheckpointSaver::CheckpointSaver(std::filesystem::path root,
                                 const std::shared_ptr<ProcessGroup>& group,
                                 CheckpointOptions options)
    : root_(std::move(root)), group_(group_of_its_own(group)), options_(std::move(options)) {
  check<ValueError>(options_.keep >= 0, "checkpoint: keep must not be negative, got ",
                    options_.keep);
  options_.warn = [this, warn = std::move(options_.warn)](const std::string& warning) {
    if (!logged_.insert(warning).second) return;
    if (warn) return warn(warning);
    log(LogLevel::kWarning, warning);
  };
  try {
    thread_ = std::thread([this, rank = same_rank()] {
      RankContext context(rank);
      const RankContextGuard guard(context);
      write_checkpoints();
    });
  } catch (const std::system_error& error) {
    throw too_few_threads("checkpoint", "thread that writes in the background", 1, 0, error);
  }
}

CheckpointSaver::~CheckpointSaver() {
  try {
    wait();
  } catch (...) {
    log(LogLevel::kError, message_of_exception());
  }
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void CheckpointSaver::write_checkpoints() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return under_way_ || ending_; });
    if (!under_way_) return;
    lock.unlock();
    std::exception_ptr failure;
    try {
      write_checkpoint(root_, step_, state_, group_, options_);
    } catch (...) {
      failure = std::current_exception();
    }
    state_ = {};
    lock.lock();
    failure_ = failure;
    under_way_ = false;
    changed_.notify_all();
  }
}

Tensor& CheckpointSaver::buffer_for(std::size_t index, const Tensor& tensor) {
  auto& buffer = buffers_[index];
  if (!buffer.defined() || !fits(buffer, tensor)) {
    const MemoryTagGuard tag(MemoryTag::kCheckpoint);
    buffer = zeros_like(tensor);
    buffer.set_shard_spec(tensor.shard_spec());
  }
  return buffer;
}

void CheckpointSaver::reserve(const CheckpointState& state) {
  wait();
  buffers_.resize(state.tensors.size());
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    const auto& tensor = state.tensors[i].tensor;
    if (writes_tensor(tensor, group_.get())) buffer_for(i, tensor);
  }
}

void CheckpointSaver::save(std::int64_t step, CheckpointState state) {
  wait();
  if (options_.observe) options_.observe(CheckpointPoint::kCopy);
  for (const auto& [name, tensor] : state.tensors) {
    if (!tensor.defined() || !is_stale(tensor)) continue;
    options_.warn("checkpoint: '" + name +
                  "' is saved with old values, since no module holds this tensor any more; call "
                  "state_dict() for each save, or write into a buffer with copy_");
  }
  state.checksums = shared_checksums(state, group_.get());
  buffers_.resize(state.tensors.size());
  const NoGradGuard no_grad;
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    auto& tensor = state.tensors[i].tensor;
    if (!writes_tensor(tensor, group_.get())) {  // only its checksum is compared
      // Its bytes are the caller's alone: the thread shall not be the last to hold them.
      if (tensor.is_contiguous()) tensor = without_bytes(tensor);
      continue;
    }
    auto& buffer = buffer_for(i, tensor);
    copy_(buffer, tensor);
    tensor = buffer;
  }
  if (options_.observe) options_.observe(CheckpointPoint::kCopied);
  {
    const std::lock_guard lock(mutex_);
    step_ = step;
    state_ = std::move(state);
    under_way_ = true;
  }
  changed_.notify_all();
}

void CheckpointSaver::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !under_way_; });
  if (failure_ != nullptr) std::rethrow_exception(std::exchange(failure_, nullptr));
}

}  // namespace moegrad
