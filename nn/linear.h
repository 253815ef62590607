// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "framework/runtime/error.h"
#include "nn/module.h"
#include "ops/linear.h"

namespace moegrad::nn {

/// y = x W^T without bias.      x: [..., in]   W: [out, in]   y: [..., out]
class Linear final : public Callable<Linear> {
 public:
  struct Config {
    std::int64_t in_features = 0;
    std::int64_t out_features = 0;
    Dtype dtype = Dtype::kFloat32;
  };

  /// Zero weights: nn::init_weights fills them.
  explicit Linear(const Config& config)
      : Linear(Tensor::zeros({config.out_features, config.in_features}, config.dtype)) {}
  /// Shares `weight` [out, in] with its owner (a tied output head).
  explicit Linear(Tensor weight) : weight_(std::move(weight)) {
    check<ShapeError>(weight_.ndim() == 2, "Linear: weight must be [out, in], got ",
                      weight_.shape());
    register_parameter("weight", weight_, {.role = ParameterLayout::Role::kLinear},
                       InitialValues::normal());
  }

  Tensor forward(const Tensor& x) { return ops::linear(x, weight_); }

  const Tensor& weight() const { return weight_; }

 private:
  Tensor weight_;  // [out, in]
};

}  // namespace moegrad::nn
