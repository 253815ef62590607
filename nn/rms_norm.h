// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "nn/module.h"
#include "ops/rms_norm.h"

namespace moegrad::nn {

/// y = x / sqrt(mean(x^2) + eps) * w over the last dimension.      x, y: [..., D]   w: [D]
class RMSNorm final : public Callable<RMSNorm> {
 public:
  struct Config {
    std::int64_t dim = 0;
    double eps = 1e-6;
    Dtype dtype = Dtype::kFloat32;
  };

  /// Weights are ones.
  explicit RMSNorm(const Config& config)
      : eps_(config.eps), weight_(Tensor::ones({config.dim}, config.dtype)) {
    register_parameter("weight", weight_);
  }

  Tensor forward(const Tensor& x) { return ops::rms_norm(x, weight_, eps_); }

 private:
  double eps_;
  Tensor weight_;  // [D]
};

}  // namespace moegrad::nn
