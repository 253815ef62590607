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
  const auto draw = detail::draw_of_call(*this, "Dropout", "dropout");
  return ops::dropout(x, p_, Random(draw.ids.seed, draw.purpose), draw.ids.token_ids);
}

std::optional<ops::AttentionOptions::Dropout> attention_dropout(const Module& module, double p) {
  if (!module.is_training() || p == 0) return std::nullopt;
  const auto draw = detail::draw_of_call(module, "attention dropout", "dropout");
  return ops::AttentionOptions::Dropout{
      .p = p, .seed = draw.ids.seed, .purpose = draw.purpose, .ids = draw.ids.token_ids};
}

}  // namespace moegrad::nn
