// SPDX-License-Identifier: Apache-2.0
#include "nn/mlp.h"

#include "ops/elementwise.h"

namespace moegrad::nn {

MLP::MLP(const Config& config)
    : gate_proj_({.in_features = config.hidden_size,
                  .out_features = config.intermediate_size,
                  .dtype = config.dtype}),
      up_proj_({.in_features = config.hidden_size,
                .out_features = config.intermediate_size,
                .dtype = config.dtype}),
      down_proj_({.in_features = config.intermediate_size,
                  .out_features = config.hidden_size,
                  .dtype = config.dtype}) {
  register_module("gate_proj", gate_proj_);
  register_module("up_proj", up_proj_);
  register_module("down_proj", down_proj_);
}

Tensor MLP::forward(const Tensor& x) {                                    // [T, H]
  const Tensor hidden = ops::mul(ops::silu(gate_proj_(x)), up_proj_(x));  // [T, I]
  return down_proj_(hidden);                                              // [T, H]
}

}  // namespace moegrad::nn
