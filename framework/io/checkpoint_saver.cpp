// SPDX-License-Identifier: Apache-2.0
#include "framework/io/checkpoint_saver.h"

#include <numeric>
#include <string>
#include <utility>

#include "framework/runtime/error.h"
#include "framework/runtime/log.h"
#include "framework/tensor/arena.h"
#include "framework/tensor/fill.h"

namespace moegrad {
namespace {

std::shared_ptr<ProcessGroup> group_of_its_own(const std::shared_ptr<ProcessGroup>& group) {
  if (group == nullptr) return nullptr;
  std::vector<int> ranks(static_cast<std::size_t>(group->size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return group->subgroup(ranks, "checkpoint");
}

bool fits(const Tensor& buffer, const Tensor& tensor) {
  return buffer.shape() == tensor.shape() && buffer.dtype() == tensor.dtype();
}

}  // namespace

CheckpointSaver::CheckpointSaver(std::filesystem::path root,
                                 const std::shared_ptr<ProcessGroup>& group,
                                 CheckpointOptions options)
    : root_(std::move(root)), group_(group_of_its_own(group)), options_(std::move(options)) {
  check<ValueError>(options_.keep >= 0, "checkpoint: keep must not be negative, got ",
                    options_.keep);
}

CheckpointSaver::~CheckpointSaver() {
  try {
    wait();
  } catch (const std::exception& error) {
    log(LogLevel::kError, error.what());
  }
}

void CheckpointSaver::copy_pieces(CheckpointPart& part) {
  const MemoryTagGuard tag(MemoryTag::kCheckpoint);
  buffers_.resize(part.pieces.size());
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    auto& tensor = part.pieces[i].tensor;
    auto& buffer = buffers_[i];
    if (!buffer.defined() || !fits(buffer, tensor)) buffer = empty_like(tensor);
    copy_(buffer, tensor);
    tensor = buffer;
  }
}

void CheckpointSaver::save(std::int64_t step, const CheckpointState& state) {
  wait();
  if (options_.observe) options_.observe(CheckpointPoint::kCopy);
  auto part = own_part(step, state, group_.get());
  copy_pieces(part);
  if (options_.observe) options_.observe(CheckpointPoint::kCopied);
  thread_ = std::thread([this, written = std::move(part)] {
    try {
      write_checkpoint(root_, written, group_, options_);
    } catch (...) {
      failure_ = std::current_exception();
    }
  });
}

void CheckpointSaver::wait() {
  if (thread_.joinable()) thread_.join();
  if (failure_ != nullptr) std::rethrow_exception(std::exchange(failure_, nullptr));
}

}  // namespace moegrad
