// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/runtime/thread_state.h"

namespace moegrad {

/// Whether ops record themselves on the tape in this thread; on by default.
inline bool grad_enabled() { return ThreadState::current().grad_mode; }

/// Sets grad_enabled() while the guard lives, also in a launch(), like torch.set_grad_enabled.
using GradModeGuard = ThreadValueGuard<&ThreadState::grad_mode>;

/// torch.no_grad
class [[nodiscard]] NoGradGuard : public GradModeGuard {
 public:
  NoGradGuard() : GradModeGuard(false) {}
};

}  // namespace moegrad
