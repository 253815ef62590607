// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "nn/layer_size.h"
#include "nn/module.h"
#include "ops/add_rms_norm.h"
#include "ops/rms_norm.h"
#include "ops/rms_norm_rope.h"

namespace moegrad::nn {

/// y = x / sqrt(mean(x^2) + eps) * w over the last dimension.      x, y: [..., D]   w: [D]
class RMSNorm final : public Callable<RMSNorm> {
 public:
  struct Config {
    std::int64_t dim = 0;
    double eps = 1e-6;
    Dtype dtype = Dtype::kFloat32;
  };

  /// Weights are ones. ValueError for a dim outside [1, 2^31).
  explicit RMSNorm(const Config& config)
      : eps_(config.eps),
        weight_(Tensor::ones({detail::layer_size("RMSNorm", "dim", config.dim)}, config.dtype)) {
    register_parameter("weight", weight_, InitialValues::ones());
  }

  Tensor forward(const Tensor& x) { return ops::rms_norm(x, weight_, eps_, 1, compute_dtype()); }

  /// forward(x) for x [T, N, D] of N heads (`heads` of ops::rms_norm). Called through call_method.
  Tensor by_heads(const Tensor& x) {
    return ops::rms_norm(x, weight_, eps_, x.dim(1), compute_dtype());
  }

  // --- fused with its neighbours. Called through call_method; the same bits as the separate ops,
  // but rope() of bfloat16 rounds once.

  struct Added {
    Tensor sum, normed;
  };
  /// sum = x + residual and forward(sum).
  Added add(const Tensor& x, const Tensor& residual) {
    const auto [sum, y] = ops::add_rms_norm(x, residual, weight_, eps_, compute_dtype());
    return {.sum = sum, .normed = y};
  }
  /// ops::rope of forward(x).      x: [T, N, D]   cos, sin: [T, D/2]
  Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin) {
    return ops::rms_norm_rope(x, weight_, {.cos = cos, .sin = sin}, eps_);
  }

 private:
  double eps_;
  Tensor weight_;  // [D]
};

inline void for_each_tensor(RMSNorm::Added& added, const TensorVisitor& visit) {
  visit_tensors(visit, added.sum, added.normed);
}

}  // namespace moegrad::nn
