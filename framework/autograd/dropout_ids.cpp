// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/dropout_ids.h"

#include <utility>

#include "framework/runtime/thread_state.h"

namespace moegrad {

DropoutIdsGuard::DropoutIdsGuard(std::shared_ptr<const DropoutIds> ids)
    : previous_(std::exchange(ThreadState::current().dropout_ids, std::move(ids))),
      outer_(std::exchange(ThreadState::current().dropout_guard, this)) {}

DropoutIdsGuard::~DropoutIdsGuard() {
  ThreadState::current().dropout_ids = std::move(previous_);
  ThreadState::current().dropout_guard = outer_;
}

bool DropoutIdsGuard::is_first_draw(const std::string& purpose) {
  auto* const guard = ThreadState::current().dropout_guard;
  if (guard == nullptr) return true;
  const std::lock_guard lock(guard->mutex_);
  return guard->drawn_.insert(purpose).second;
}

const std::shared_ptr<const DropoutIds>& DropoutIdsGuard::current() {
  return ThreadState::current().dropout_ids;
}

}  // namespace moegrad
