// SPDX-License-Identifier: Apache-2.0
#include "tests/framework/io/allocation_count.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

namespace moegrad::test {
namespace {

std::atomic<std::ptrdiff_t> live = 0;
std::atomic<std::ptrdiff_t> peak = 0;
std::atomic<std::ptrdiff_t> start = 0;

std::ptrdiff_t cost(void* block) {
  constexpr std::ptrdiff_t kOverhead = 8;
  return static_cast<std::ptrdiff_t>(malloc_usable_size(block)) + kOverhead;
}

}  // namespace

std::size_t allocation_peak() { return static_cast<std::size_t>(peak - start); }

void reset_allocation_peak() {
  start = live.load();
  peak = live.load();
}

}  // namespace moegrad::test

using namespace moegrad::test;

void* operator new(std::size_t size) {
  void* const block = std::malloc(std::max<std::size_t>(size, 1));
  if (block == nullptr) throw std::bad_alloc();
  const auto now = live += cost(block);
  auto seen = peak.load();
  while (seen < now && !peak.compare_exchange_weak(seen, now)) {
  }
  return block;
}

void operator delete(void* block) noexcept {
  if (block == nullptr) return;
  live -= cost(block);
  std::free(block);
}

void operator delete(void* block, std::size_t) noexcept { operator delete(block); }
