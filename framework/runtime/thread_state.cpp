// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/thread_state.h"

#include "framework/runtime/rank_context.h"

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
