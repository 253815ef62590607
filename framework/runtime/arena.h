// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <unordered_map>
#include <vector>

#include "framework/runtime/error.h"
#include "framework/runtime/memory_tag.h"
#include "framework/runtime/thread_state.h"

namespace moegrad {

/// Live bytes per tag at one moment.
struct MemoryUse {
  std::array<std::int64_t, kMemoryTags> bytes{};

  std::int64_t operator[](MemoryTag tag) const { return bytes[static_cast<std::size_t>(tag)]; }
  std::int64_t& operator[](MemoryTag tag) { return bytes[static_cast<std::size_t>(tag)]; }
  std::int64_t total() const;
  /// The tags that have bytes, the largest first.
  std::vector<MemoryTag> tags() const;
};

/// Memory beyond an arena's budget.
class MemoryBudgetError : public Error {
 public:
  MemoryBudgetError(const std::string& message, const MemoryUse& live)
      : Error(message), live_(live) {}
  /// What was in use.
  const MemoryUse& live() const { return live_; }

 private:
  MemoryUse live_;
};

/// The memory of one rank. It counts every byte requested, keeps the highest total, and throws past
/// its budget. It recycles freed blocks, so that a steady state asks the system for nothing.
///
/// Note [Blocks that are too large]
/// The number of rows that an expert computes changes from step to step, and so do the sizes that a
/// step requests. From 256 KiB on, a free block may therefore serve a request if it is at most a
/// quarter larger. With blocks of fitting sizes alone, the arena would keep asking the system for
/// new ones, whose pages the system clears, and would end with a set of blocks for each size that
/// it has seen. The accounts, and the budget, are of the bytes requested all the same.
///
/// Blocks are 64-byte aligned. The arena counts the bytes requested, without the rounding.
class Arena {
 public:
  Arena() = default;
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Throws MemoryBudgetError if `bytes` more would exceed the budget, and OutOfMemoryError if the
  /// system gives no more.
  std::byte* allocate(std::int64_t bytes, MemoryTag tag);
  void deallocate(std::byte* block, std::int64_t bytes, MemoryTag tag) noexcept;
  /// Moves `bytes` of live memory from one tag's account to another's.
  void retag(std::int64_t bytes, MemoryTag from, MemoryTag to);

  MemoryUse live() const;
  /// The use at the moment of the highest total since construction or reset_peak().
  MemoryUse peak() const;
  /// The highest use of this tag alone.
  std::int64_t peak(MemoryTag tag) const;
  void reset_peak();
  /// Bytes above which allocate() throws; 0 means no limit.
  void set_budget(std::int64_t bytes);
  /// The number of blocks that came from the system and were not recycled.
  std::int64_t system_allocations() const;

 private:
  using FreeBlocks = std::map<std::int64_t, std::vector<std::byte*>>;

  void note_peak();
  FreeBlocks::iterator find_free(std::int64_t size);

  mutable std::mutex mutex_;
  MemoryUse live_;
  MemoryUse peak_;
  MemoryUse peak_per_tag_;
  std::int64_t budget_ = 0;
  std::int64_t system_allocations_ = 0;
  FreeBlocks free_blocks_;  // by rounded size
  /// The sizes of large blocks in use: Note [Blocks that are too large].
  std::unordered_map<const std::byte*, std::int64_t> large_;
};

/// Tags the memory that the current thread allocates until the guard goes out of scope.
class [[nodiscard]] MemoryTagGuard : public ThreadValueGuard<&ThreadState::memory_tag> {
 public:
  explicit MemoryTagGuard(MemoryTag tag) : ThreadValueGuard(tag) {}

  static MemoryTag current() { return ThreadState::current().memory_tag; }
};

}  // namespace moegrad
