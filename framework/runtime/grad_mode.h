// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace moegrad {

/// Whether ops record themselves on the tape in this thread; on by default.
bool grad_enabled();

/// Sets grad_enabled() while the guard lives, also in a launch(), like torch.set_grad_enabled.
class [[nodiscard]] GradModeGuard {
 public:
  explicit GradModeGuard(bool enabled);
  ~GradModeGuard();
  GradModeGuard(const GradModeGuard&) = delete;
  GradModeGuard& operator=(const GradModeGuard&) = delete;

 private:
  bool previous_;
};

/// torch.no_grad
class [[nodiscard]] NoGradGuard : public GradModeGuard {
 public:
  NoGradGuard() : GradModeGuard(false) {}
};

}  // namespace moegrad
