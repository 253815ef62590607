// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "framework/runtime/thread_state.h"

namespace moegrad {

/// Whether tensors made in this thread get no bytes; off by default.
inline bool meta_enabled() { return ThreadState::current().meta_mode; }

/// Sets meta_enabled() until the guard goes out of scope, like torch.device("meta"). Tensors that
/// are made meanwhile have shape and dtype but no bytes, so nothing is allocated, counted or
/// filled, however large they are. Module::to_empty() gives bytes to the parameters of a module
/// that was built this way.
///
/// There is no shape inference: an op that reads or writes such a tensor throws Error.
class [[nodiscard]] MetaGuard : public ThreadValueGuard<&ThreadState::meta_mode> {
 public:
  explicit MetaGuard(bool enabled = true) : ThreadValueGuard(enabled) {}
};

}  // namespace moegrad
