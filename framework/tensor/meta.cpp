// SPDX-License-Identifier: Apache-2.0
#include "framework/tensor/meta.h"

#include <utility>

#include "framework/runtime/thread_state.h"

namespace moegrad {

bool meta_enabled() { return ThreadState::current().meta_mode; }
MetaGuard::MetaGuard(bool enabled)
    : previous_(std::exchange(ThreadState::current().meta_mode, enabled)) {}
MetaGuard::~MetaGuard() { ThreadState::current().meta_mode = previous_; }

}  // namespace moegrad
