// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "nn/any_module.h"
#include "nn/module.h"

namespace moegrad::nn {

/// y = W_down (silu(W_gate x) * W_up x), the dense feed-forward layer.      x, y: [T, H]
///
/// replace() takes other modules as gate_proj, up_proj and down_proj.
class MLP final : public Callable<MLP> {
 public:
  struct Config {
    std::int64_t hidden_size = 0;
    std::int64_t intermediate_size = 0;
    Dtype dtype = Dtype::kFloat32;
  };

  explicit MLP(const Config& config);

  Tensor forward(const Tensor& x);

 private:
  TensorModule gate_proj_, up_proj_, down_proj_;
};

}  // namespace moegrad::nn
