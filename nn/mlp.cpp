// SPDX-License-Identifier: Apache-2.0
#include "nn/mlp.h"

#include <memory>

#include "nn/linear.h"
#include "ops/elementwise.h"

namespace moegrad::nn {
namespace {

std::shared_ptr<Linear> make_projection(std::int64_t in, std::int64_t out,
                                        const MLP::Config& config) {
  return std::make_shared<Linear>(Linear::Config{
      .in_features = in, .out_features = out, .bias = config.bias, .dtype = config.dtype});
}

}  // namespace

MLP::MLP(const Config& config)
    : activation_(config.activation),
      up_proj_(make_projection(config.hidden_size, config.intermediate_size, config)),
      down_proj_(make_projection(config.intermediate_size, config.hidden_size, config)) {
  check<ValueError>(activation_ != nullptr, "MLP: activation must be a function, got none");
  if (config.gated) {
    gate_proj_ = make_projection(config.hidden_size, config.intermediate_size, config);
    register_module("gate_proj", gate_proj_);
  }
  register_module("up_proj", up_proj_);
  register_module("down_proj", down_proj_);
}

Tensor MLP::forward(const Tensor& x) {                                      // [..., H]
  if (gate_proj_.empty()) return down_proj_(activation_(up_proj_(x)));      // [..., H]
  const Tensor hidden = ops::mul(activation_(gate_proj_(x)), up_proj_(x));  // [..., I]
  return down_proj_(hidden);                                                // [..., H]
}

}  // namespace moegrad::nn
