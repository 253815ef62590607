// SPDX-License-Identifier: Apache-2.0
#include "framework/tensor/storage.h"

#include <exception>
#include <string_view>

#include "framework/runtime/error.h"
#include "framework/runtime/rank_context.h"
#include "framework/tensor/meta.h"

namespace moegrad {

Storage::Storage(std::int64_t bytes) : bytes_(bytes), tag_(MemoryTagGuard::current()) {
  if (!meta_enabled()) refill();
}

Storage::~Storage() { release(); }

std::byte* Storage::data() const {
  const std::string_view name = name_.empty() ? "(unnamed)" : std::string_view(name_);
  check(!meta_, "tensor: '", name,
        "' has no bytes yet: it was made on the meta device; call to_empty()");
  check(data_ != nullptr, "tensor: the bytes of '", name,
        "' have been released; unshard its module before reading it");
  if (filling_ != nullptr) filling_->wait();
  return data_;
}

void Storage::read_by(const std::shared_ptr<PendingBytes>& reading) {
  const std::lock_guard lock(readers_mutex_);
  std::erase_if(readers_, [](const auto& reader) { return reader.expired(); });
  readers_.push_back(reading);
  has_readers_.store(true, std::memory_order_release);
}

void Storage::wait_for_readers() {
  std::vector<std::weak_ptr<PendingBytes>> readers;
  {
    const std::lock_guard lock(readers_mutex_);
    readers.swap(readers_);
    has_readers_.store(false, std::memory_order_release);
  }
  std::exception_ptr failure;
  for (const auto& reader : readers) {
    const auto reading = reader.lock();
    if (reading == nullptr) continue;
    try {
      reading->wait();
    } catch (...) {
      if (failure == nullptr) failure = std::current_exception();
    }
  }
  if (failure != nullptr) std::rethrow_exception(failure);
}

void Storage::release() {
  meta_ = false;
  filling_.reset();  // blocks until it has ended, whatever has become of it
  try {
    wait_for_readers();
  } catch (const std::exception&) {  // shows where what they read is used
  }
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
