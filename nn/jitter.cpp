// SPDX-License-Identifier: Apache-2.0
#include "nn/jitter.h"

#include "framework/runtime/error.h"
#include "framework/runtime/random.h"
#include "nn/token_random.h"
#include "ops/copies.h"
#include "ops/jitter.h"

namespace moegrad::nn {

Jitter::Jitter(const Config& config) : noise_(config.noise) {
  check<ValueError>(0 <= noise_ && noise_ < 1, "Jitter: noise must be in [0, 1), got ", noise_);
}

Tensor Jitter::forward(const Tensor& x) {
  if (!is_training() || noise_ == 0) return x;
  const auto draw = detail::draw_of_call(*this, "Jitter", "jitter");
  const Tensor varied =
      ops::jitter(ops::widened(x), noise_, Random(draw.ids.seed, draw.purpose), draw.ids.token_ids);
  return ops::cast(varied, x.dtype());
}

}  // namespace moegrad::nn
