// SPDX-License-Identifier: Apache-2.0
#include "framework/tensor/storage.h"

#include <string_view>

#include "framework/runtime/error.h"
#include "framework/runtime/rank_context.h"
#include "framework/tensor/meta.h"

namespace moegrad {

Storage::Storage(std::int64_t bytes) : bytes_(bytes), tag_(MemoryTagGuard::current()) {
  if (!meta_enabled()) refill();
}

// Who reads it has a handle, so there is no reader any more.
Storage::~Storage() {
  readers_.clear();
  has_readers_.store(false, std::memory_order_relaxed);
  release();
}

std::byte* Storage::data() const {
  const std::string_view name = name_.empty() ? "(unnamed)" : std::string_view(name_);
  check(!meta_, "tensor: '", name,
        "' has no bytes yet: it was made on the meta device; call to_empty()");
  check(data_ != nullptr, "tensor: the bytes of '", name,
        "' have been released; unshard its module before reading it");
  if (filling_ != nullptr) filling_->wait();
  return data_;
}

void Storage::read_by(std::shared_ptr<ReaderOfBytes> reader) {
  const std::lock_guard lock(readers_mutex_);
  std::erase_if(readers_, [](const auto& other) { return other->has_ended(); });
  readers_.push_back(std::move(reader));
  has_readers_.store(true, std::memory_order_release);
}

void Storage::await_readers() {
  std::vector<std::shared_ptr<ReaderOfBytes>> readers;
  {
    const std::lock_guard lock(readers_mutex_);
    readers = readers_;
  }
  for (const auto& reader : readers) reader->await_end();
  const std::lock_guard lock(readers_mutex_);
  std::erase_if(readers_, [](const auto& reader) { return reader->has_ended(); });
  has_readers_.store(!readers_.empty(), std::memory_order_release);
}

void Storage::release() {
  if (has_readers_.load(std::memory_order_acquire)) await_readers();
  meta_ = false;
  filling_.reset();  // blocks until it has ended, whatever has become of it
  if (data_ == nullptr) return;
  arena_->deallocate(data_, bytes_, tag_);
  data_ = nullptr;
}

void Storage::refill() {
  if (data_ != nullptr) return;
  if (arena_ == nullptr) arena_ = RankContext::current().arena();
  data_ = arena_->allocate(bytes_, tag_);
  meta_ = false;
}

void Storage::retag(MemoryTag tag) {
  if (data_ != nullptr) arena_->retag(bytes_, tag_, tag);
  tag_ = tag;
}

}  // namespace moegrad
