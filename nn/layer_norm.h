// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "nn/layer_size.h"
#include "nn/module.h"
#include "ops/layer_norm.h"

namespace moegrad::nn {

/// y = (x - mean(x)) / sqrt(var(x) + eps) * w + b over the last dimension (ops::layer_norm).
/// x, y: [..., D]   w, b: [D]
class LayerNorm final : public Callable<LayerNorm> {
 public:
  struct Config {
    std::int64_t dim = 0;
    double eps = 1e-5;
    bool bias = true;
    Dtype dtype = Dtype::kFloat32;
  };

  /// Weights are ones, biases zeros. ValueError for a dim outside [1, 2^31).
  explicit LayerNorm(const Config& config)
      : eps_(config.eps),
        weight_(Tensor::ones({detail::layer_size("LayerNorm", "dim", config.dim)}, config.dtype)) {
    register_parameter("weight", weight_, InitialValues::ones());
    if (!config.bias) return;
    bias_ = Tensor::zeros({config.dim}, config.dtype);
    register_parameter("bias", bias_, InitialValues::zeros());
  }

  Tensor forward(const Tensor& x) { return ops::layer_norm(x, weight_, bias_, eps_); }

 private:
  double eps_;
  Tensor weight_, bias_;  // [D]
};

}  // namespace moegrad::nn
