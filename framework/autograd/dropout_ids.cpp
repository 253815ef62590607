// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/dropout_ids.h"

namespace moegrad {

bool DropoutIdsGuard::is_first_draw(const std::string& purpose) {
  auto* const guard = ThreadState::current().dropout_guard;
  if (guard == nullptr) return true;
  const std::lock_guard lock(guard->mutex_);
  return guard->drawn_.insert(purpose).second;
}

}  // namespace moegrad
