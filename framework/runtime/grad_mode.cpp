// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/grad_mode.h"

#include <utility>

#include "framework/runtime/thread_state.h"

namespace moegrad {

bool grad_enabled() { return ThreadState::current().grad_mode; }
GradModeGuard::GradModeGuard(bool enabled)
    : previous_(std::exchange(ThreadState::current().grad_mode, enabled)) {}
GradModeGuard::~GradModeGuard() { ThreadState::current().grad_mode = previous_; }

}  // namespace moegrad
