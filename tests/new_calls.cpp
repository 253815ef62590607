// SPDX-License-Identifier: Apache-2.0
#include "tests/new_calls.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace moegrad::test {
namespace {

std::atomic<std::int64_t> calls = 0;
std::atomic<std::int64_t> bytes = 0;
std::atomic<std::int64_t> largest = 0;

void note(std::size_t size) {
  const auto asked = static_cast<std::int64_t>(size);
  calls.fetch_add(1, std::memory_order_relaxed);
  bytes.fetch_add(asked, std::memory_order_relaxed);
  auto seen = largest.load(std::memory_order_relaxed);
  while (seen < asked && !largest.compare_exchange_weak(seen, asked, std::memory_order_relaxed)) {
  }
}

}  // namespace

NewCalls new_calls() { return {.calls = calls, .bytes = bytes, .largest = largest}; }
void reset_largest_new() { largest = 0; }

}  // namespace moegrad::test

void* operator new(std::size_t size) {
  moegrad::test::note(size);
  void* const block = std::malloc(std::max<std::size_t>(size, 1));
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

void* operator new(std::size_t size, std::align_val_t alignment) {
  moegrad::test::note(size);
  const auto step = static_cast<std::size_t>(alignment);
  void* const block =
      std::aligned_alloc(step, (std::max<std::size_t>(size, 1) + step - 1) / step * step);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

void operator delete(void* block) noexcept { std::free(block); }
void operator delete(void* block, std::size_t) noexcept { std::free(block); }
void operator delete(void* block, std::align_val_t) noexcept { std::free(block); }
void operator delete(void* block, std::size_t, std::align_val_t) noexcept { std::free(block); }
