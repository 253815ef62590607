// SPDX-License-Identifier: Apache-2.0
#include "nn/dropout.h"

#include <string>
#include <string_view>

#include "framework/autograd/dropout_ids.h"
#include "framework/autograd/scope.h"
#include "framework/runtime/error.h"
#include "framework/runtime/random.h"
#include "ops/dropout.h"

namespace moegrad::nn {
namespace {

const DropoutIds& ids_in_force(std::string_view what) {
  const auto& ids = DropoutIdsGuard::current();
  check(ids != nullptr, what,
        ": training needs a DropoutIdsGuard with the seed, the step and the tokens' ids, or call "
        "eval()");
  return *ids;
}

// What tells this call's masks from those of other modules and steps.
std::string purpose(std::string_view what, std::int64_t step) {
  const auto& scope = ScopeGuard::current();
  // Only a module that another one calls without having registered it has that one's path.
  check(!scope || !scope->parent || scope->path != scope->parent->path, what,
        ": masks depend on the module's path, so it must be registered with the module that calls "
        "it (register_module)");
  return (scope ? scope->path : std::string()) + " dropout of step " + std::to_string(step);
}

}  // namespace

Dropout::Dropout(const Config& config) : p_(config.p) {
  check<ValueError>(0 <= p_ && p_ < 1, "Dropout: p must be in [0, 1), got ", p_);
}

Tensor Dropout::forward(const Tensor& x) {
  if (!is_training() || p_ == 0) return x;
  const auto& ids = ids_in_force("Dropout");
  return ops::dropout(x, p_, Random(ids.seed, purpose("Dropout", ids.step)), ids.token_ids);
}

std::optional<ops::AttentionOptions::Dropout> attention_dropout(const Module& module, double p) {
  if (!module.is_training() || p == 0) return std::nullopt;
  const auto& ids = ids_in_force("attention dropout");
  return ops::AttentionOptions::Dropout{.p = p,
                                        .seed = ids.seed,
                                        .purpose = purpose("attention dropout", ids.step),
                                        .ids = ids.token_ids};
}

}  // namespace moegrad::nn
