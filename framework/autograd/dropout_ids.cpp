// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/dropout_ids.h"

#include <utility>

#include "framework/runtime/thread_state.h"

namespace moegrad {

DropoutIdsGuard::DropoutIdsGuard(std::shared_ptr<const DropoutIds> ids)
    : previous_(std::exchange(ThreadState::current().dropout_ids, std::move(ids))) {}

DropoutIdsGuard::~DropoutIdsGuard() { ThreadState::current().dropout_ids = std::move(previous_); }

const std::shared_ptr<const DropoutIds>& DropoutIdsGuard::current() {
  return ThreadState::current().dropout_ids;
}

}  // namespace moegrad
