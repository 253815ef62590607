// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/grad_mode.h"

namespace moegrad {
namespace {

thread_local bool grad_mode = true;

}  // namespace

bool grad_enabled() { return grad_mode; }
GradModeGuard::GradModeGuard(bool enabled) : previous_(grad_mode) { grad_mode = enabled; }
GradModeGuard::~GradModeGuard() { grad_mode = previous_; }

}  // namespace moegrad
