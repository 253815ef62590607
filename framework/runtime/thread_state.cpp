// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/thread_state.h"

#include "framework/runtime/rank_context.h"

#ifdef MOEGRAD_CHECK_CPU_AT_START
// Every program has this file, so with this address it has the check, too, which nothing calls.
extern "C" void moegrad_check_cpu_at_start();
[[gnu::used]] static void (*const kCpuCheck)() = &moegrad_check_cpu_at_start;
#endif

namespace moegrad {

ThreadState& ThreadState::current() {
  thread_local ThreadState state;
  return state;
}

ThreadState ThreadState::capture() {
  auto& own = current();
  if (own.tape_entries == nullptr) {
    own.tape_entries = std::make_shared<std::atomic<std::uint64_t>>();
  }
  auto state = own;
  state.rank = RankContext::find();
  return state;
}

}  // namespace moegrad
