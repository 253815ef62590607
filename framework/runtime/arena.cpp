// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cassert>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <sstream>
#include <string>

#include "framework/runtime/error.h"

namespace moegrad {
namespace {

constexpr std::int64_t kAlignment = 64;

std::int64_t round_up(std::int64_t bytes, std::int64_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

// From this size on a block begins at a huge page and requests huge pages. With pages of 4 KB, a
// matmul that walks megabytes spends a tenth of its time here on address translation.
constexpr std::int64_t kHugePage = std::int64_t{2} << 20;
constexpr std::int64_t kPage = 4096;

// From this size on a free block serves requests that need less: Note [Blocks that are too large].
constexpr std::int64_t kLarge = std::int64_t{256} << 10;

// No system has as many, and sizes up to here are rounded without overflow.
constexpr std::int64_t kMostBytes = std::int64_t{1} << 56;

// Large blocks are rounded to an eighth of their power of two, so that slightly different sizes
// (token counts vary from step to step) share one free list.
std::int64_t block_size(std::int64_t bytes) {
  std::int64_t step = kAlignment;
  while (step <= (bytes - 1) / 16) step *= 2;  // while 16 steps are fewer than the bytes
  return round_up(std::max<std::int64_t>(bytes, 1), step);
}

// Null where the system gives no more.
std::byte* allocate_from_system(std::int64_t size) {
  const auto alignment = size >= kHugePage ? kHugePage : kAlignment;
  void* block = std::aligned_alloc(static_cast<std::size_t>(alignment),
                                   static_cast<std::size_t>(round_up(size, alignment)));
  if (block == nullptr) return nullptr;
  // This is advice: if the system ignores it, the block still works but is slower.
  if (size >= kHugePage) madvise(block, static_cast<std::size_t>(size), MADV_HUGEPAGE);
  // Touched now, because a later step may be the first to use the whole block.
  auto* const bytes = static_cast<std::byte*>(block);
  for (std::int64_t i = 0; i < size; i += kPage) bytes[i] = {};
  return bytes;
}

// Note [Exact blocks]
// Under the address sanitizer each block comes from the system with its exact size and is freed at
// once, so that the sanitizer finds accesses past its end and after it was freed. The block is
// filled with bytes 0xff, NaN in every floating dtype, so that values which were never written are
// seen. The accounts, including those of recycled blocks, are the same as without the sanitizer:
// the free lists hold null pointers.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kExactBlocks = true;
#else
constexpr bool kExactBlocks = false;
#endif

// Null where the system gives no more.
std::byte* allocate_exactly(std::int64_t bytes) {
  void* block = nullptr;
  const auto size = static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1));
  if (posix_memalign(&block, kAlignment, size) != 0) return nullptr;
  std::memset(block, 0xff, size);
  return static_cast<std::byte*>(block);
}

}  // namespace

std::string_view to_string(MemoryTag tag) {
  constexpr std::array<std::string_view, kMemoryTags> kNames = {
      "parameters", "gradients", "optimizer", "activations", "communication", "checkpoint"};
  return kNames[static_cast<std::size_t>(tag)];
}

std::int64_t MemoryUse::total() const {
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
}

std::vector<MemoryTag> MemoryUse::tags() const {
  std::vector<MemoryTag> used;
  for (std::size_t i = 0; i < kMemoryTags; ++i) {
    if (bytes[i] > 0) used.push_back(static_cast<MemoryTag>(i));
  }
  std::ranges::stable_sort(used, std::greater<>(), [&](MemoryTag tag) { return (*this)[tag]; });
  return used;
}

Arena::~Arena() {
  for (auto& [size, blocks] : free_blocks_) {
    for (auto* block : blocks) std::free(block);
  }
}

std::byte* Arena::allocate(std::int64_t bytes, MemoryTag tag) {
  const std::lock_guard lock(mutex_);
  if (budget_ != 0 && live_.total() + bytes > budget_) {
    std::ostringstream message;
    message << "arena: budget of " << budget_ << " bytes exceeded, " << live_.total() << " live";
    for (const auto used : live_.tags()) {
      message << (used == live_.tags().front() ? " (" : ", ") << to_string(used) << ' '
              << live_[used];
    }
    message << (live_.total() > 0 ? ")" : "") << " and " << bytes << " more asked for "
            << to_string(tag);
    throw MemoryBudgetError(message.str(), live_);
  }
  const auto refuse = [&] {
    throw OutOfMemoryError("arena: out of memory, " + std::to_string(live_.total()) +
                           " bytes live and " + std::to_string(bytes) + " more asked for " +
                           std::string(to_string(tag)));
  };
  if (bytes > kMostBytes) refuse();
  auto size = block_size(bytes);
  std::byte* block = nullptr;
  const auto found = find_free(size);
  if (found != free_blocks_.end()) {
    size = found->first;
    block = found->second.back();
    found->second.pop_back();
  } else {
    if (!kExactBlocks) block = allocate_from_system(size);
    ++system_allocations_;
  }
  if (kExactBlocks) block = allocate_exactly(bytes);
  if (block == nullptr) refuse();
  if (size >= kLarge) large_[block] = size;
  live_[tag] += bytes;
  note_peak();
  return block;
}

// The smallest free block that will do.
Arena::FreeBlocks::iterator Arena::find_free(std::int64_t size) {
  const auto most = size >= kLarge ? size + size / 4 : size;
  auto found = free_blocks_.lower_bound(size);
  while (found != free_blocks_.end() && found->first <= most && found->second.empty()) ++found;
  return found != free_blocks_.end() && found->first <= most ? found : free_blocks_.end();
}

void Arena::deallocate(std::byte* block, std::int64_t bytes, MemoryTag tag) noexcept {
  const std::lock_guard lock(mutex_);
  live_[tag] -= bytes;
  auto size = block_size(bytes);
  if (size >= kLarge) {
    const auto large = large_.find(block);
    assert(large != large_.end());
    size = large->second;
    large_.erase(large);
  }
  if (kExactBlocks) {
    std::free(block);
    block = nullptr;
  }
  free_blocks_[size].push_back(block);
}

void Arena::retag(std::int64_t bytes, MemoryTag from, MemoryTag to) {
  const std::lock_guard lock(mutex_);
  live_[from] -= bytes;
  live_[to] += bytes;
  note_peak();
}

void Arena::note_peak() {
  if (live_.total() > peak_.total()) peak_ = live_;
  for (std::size_t i = 0; i < kMemoryTags; ++i) {
    peak_per_tag_.bytes[i] = std::max(peak_per_tag_.bytes[i], live_.bytes[i]);
  }
}

MemoryUse Arena::live() const {
  const std::lock_guard lock(mutex_);
  return live_;
}

MemoryUse Arena::peak() const {
  const std::lock_guard lock(mutex_);
  return peak_;
}

std::int64_t Arena::peak(MemoryTag tag) const {
  const std::lock_guard lock(mutex_);
  return peak_per_tag_[tag];
}

void Arena::reset_peak() {
  const std::lock_guard lock(mutex_);
  peak_ = live_;
  peak_per_tag_ = live_;
}

void Arena::set_budget(std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  budget_ = bytes;
}

std::int64_t Arena::system_allocations() const {
  const std::lock_guard lock(mutex_);
  return system_allocations_;
}

}  // namespace moegrad
