// SPDX-License-Identifier: Apache-2.0
#include "framework/tensor/storage.h"

#include "framework/runtime/error.h"
#include "framework/runtime/rank_context.h"

namespace moegrad {

Storage::Storage(std::int64_t bytes)
    : arena_(RankContext::current().arena()),
      data_(arena_->allocate(bytes, MemoryTagGuard::current())),
      bytes_(bytes),
      tag_(MemoryTagGuard::current()) {}

Storage::~Storage() { release(); }

std::byte* Storage::data() const {
  check(data_ != nullptr, "tensor: the bytes of '", name_.empty() ? "(unnamed)" : name_,
        "' have been released; unshard its module before reading it");
  return data_;
}

void Storage::release() {
  if (data_ == nullptr) return;
  arena_->deallocate(data_, bytes_, tag_);
  data_ = nullptr;
}

void Storage::refill() {
  if (data_ == nullptr) data_ = arena_->allocate(bytes_, tag_);
}

void Storage::retag(MemoryTag tag) {
  if (data_ != nullptr) arena_->retag(bytes_, tag_, tag);
  tag_ = tag;
}

}  // namespace moegrad
