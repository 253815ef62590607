// SPDX-License-Identifier: Apache-2.0
#include "nn/token_random.h"

#include "framework/autograd/scope.h"
#include "framework/runtime/error.h"
#include "framework/runtime/rank_context.h"

namespace moegrad::nn::detail {
namespace {

void check_registered(std::string_view layer) {
  const auto& scope = ScopeGuard::current();
  for (const auto* call = scope.get(); call != nullptr && call->parent; call = call->parent.get()) {
    // Different modules that a caller has not registered may have the same path there.
    const auto* const callers_root = call->parent->tree.root;
    check(callers_root == nullptr || call->tree.root == callers_root, layer,
          ": masks depend on the module's path, so it must be registered with the module that "
          "calls it (register_module)");
  }
}

void warn_of_same_masks(const Module& module, std::string_view layer, const Draw& draw) {
  const auto& scope = ScopeGuard::current();
  const auto where = [&] {
    return std::string(layer) + " '" + std::string(scope ? scope->display_path() : "") + "'";
  };
  if (!DropoutIdsGuard::is_first_draw(draw.purpose)) {
    module.warn_once(
        WarningOf::kSameMasksAgain,
        where() +
            " is called again under one DropoutIdsGuard, so it drops the same elements again; "
            "give each step a guard with its step, each micro-batch its token_ids, and "
            "another forward of the same tokens another draw");
  }
  const auto* const rank = RankContext::find();
  if (rank != nullptr && rank->world_size() > 1 && !draw.ids.token_ids.defined()) {
    module.warn_once(WarningOf::kSameMasksOnAllRanks,
                     where() + " has no token_ids, so row i of each of the " +
                         std::to_string(rank->world_size()) +
                         " ranks loses the same elements; give DropoutIds::token_ids, an id of its "
                         "own to each token of the step");
  }
}

}  // namespace

Draw draw_of_call(const Module& module, std::string_view layer, std::string_view kind) {
  const auto& ids = DropoutIdsGuard::current();
  check(ids != nullptr, layer,
        ": training needs a DropoutIdsGuard with the seed, the step and the tokens' ids, or call "
        "eval()");
  check_registered(layer);
  const auto& scope = ScopeGuard::current();
  Draw draw{.ids = *ids,
            .purpose = (scope ? scope->path() : std::string()) + " " + std::string(kind) +
                       " of step " + std::to_string(ids->step)};
  if (ids->draw != 0) draw.purpose += ", draw " + std::to_string(ids->draw);
  warn_of_same_masks(module, layer, draw);
  return draw;
}

}  // namespace moegrad::nn::detail
