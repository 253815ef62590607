// SPDX-License-Identifier: Apache-2.0
#include "nn/mlp.h"

#include <memory>

#include "nn/linear.h"
#include "ops/elementwise.h"

namespace moegrad::nn {
namespace {

std::shared_ptr<Linear> make_projection(std::int64_t in, std::int64_t out, Dtype dtype) {
  return std::make_shared<Linear>(
      Linear::Config{.in_features = in, .out_features = out, .dtype = dtype});
}

}  // namespace

MLP::MLP(const Config& config)
    : gate_proj_(make_projection(config.hidden_size, config.intermediate_size, config.dtype)),
      up_proj_(make_projection(config.hidden_size, config.intermediate_size, config.dtype)),
      down_proj_(make_projection(config.intermediate_size, config.hidden_size, config.dtype)) {
  register_module("gate_proj", gate_proj_);
  register_module("up_proj", up_proj_);
  register_module("down_proj", down_proj_);
}

Tensor MLP::forward(const Tensor& x) {                                    // [T, H]
  const Tensor hidden = ops::mul(ops::silu(gate_proj_(x)), up_proj_(x));  // [T, I]
  return down_proj_(hidden);                                              // [T, H]
}

}  // namespace moegrad::nn
