// SPDX-License-Identifier: Apache-2.0
#include "nn/token_random.h"

#include "framework/autograd/scope.h"
#include "framework/runtime/error.h"

namespace moegrad::nn::detail {

const DropoutIds& ids_in_force(std::string_view layer) {
  const auto& ids = DropoutIdsGuard::current();
  check(ids != nullptr, layer,
        ": training needs a DropoutIdsGuard with the seed, the step and the tokens' ids, or call "
        "eval()");
  return *ids;
}

std::string purpose_of_call(std::string_view layer, std::string_view purpose, std::int64_t step) {
  const auto& scope = ScopeGuard::current();
  for (const auto* call = scope.get(); call != nullptr && call->parent; call = call->parent.get()) {
    // Different modules that a caller has not registered may have the same path there.
    const auto* const callers_root = call->parent->tree.root;
    check(callers_root == nullptr || call->tree.root == callers_root, layer,
          ": masks depend on the module's path, so it must be registered with the module that "
          "calls it (register_module)");
  }
  return (scope ? scope->path : std::string()) + " " + std::string(purpose) + " of step " +
         std::to_string(step);
}

}  // namespace moegrad::nn::detail
