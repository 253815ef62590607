// SPDX-License-Identifier: Apache-2.0
#include "nn/dropout.h"

#include "framework/runtime/error.h"
#include "framework/runtime/random.h"
#include "nn/token_random.h"
#include "ops/dropout.h"

namespace moegrad::nn {

Dropout::Dropout(const Config& config) : p_(config.p) {
  check<ValueError>(0 <= p_ && p_ < 1, "Dropout: p must be in [0, 1), got ", p_);
}

Tensor Dropout::forward(const Tensor& x) {
  if (!is_training() || p_ == 0) return x;
  const auto& ids = detail::ids_in_force("Dropout");
  const Random random(ids.seed, detail::purpose_of_call("Dropout", "dropout", ids.step));
  return ops::dropout(x, p_, random, ids.token_ids);
}

std::optional<ops::AttentionOptions::Dropout> attention_dropout(const Module& module, double p) {
  if (!module.is_training() || p == 0) return std::nullopt;
  constexpr auto kName = "attention dropout";
  const auto& ids = detail::ids_in_force(kName);
  return ops::AttentionOptions::Dropout{
      .p = p,
      .seed = ids.seed,
      .purpose = detail::purpose_of_call(kName, "dropout", ids.step),
      .ids = ids.token_ids};
}

}  // namespace moegrad::nn
