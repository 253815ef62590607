// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

#include "nn/any_module.h"
#include "nn/module.h"
#include "ops/elementwise.h"

namespace moegrad::nn {

/// The dense feed-forward layer with any activation f.      x, y: [..., H]
///
///     y = W_down (f(W_gate x) * W_up x)      gated, as in Qwen3, where f is silu
///     y = W_down f(W_up x)                   not gated, as in GPT-2, where f is gelu_tanh
///
/// replace() takes other modules as gate_proj, up_proj and down_proj.
class MLP final : public Callable<MLP> {
 public:
  struct Config {
    std::int64_t hidden_size = 0;
    std::int64_t intermediate_size = 0;
    std::function<Tensor(const Tensor&)> activation = ops::silu;
    bool gated = true;
    bool bias = false;  // of every projection
    Dtype dtype = Dtype::kFloat32;
  };

  /// ValueError for an activation without a function.
  explicit MLP(const Config& config);

  Tensor forward(const Tensor& x);

 private:
  std::function<Tensor(const Tensor&)> activation_;
  TensorModule gate_proj_, up_proj_, down_proj_;  // gate_proj_ is empty unless gated
};

}  // namespace moegrad::nn
