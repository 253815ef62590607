// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "framework/runtime/error.h"
#include "nn/layer_size.h"
#include "nn/module.h"
#include "nn/operand.h"
#include "ops/elementwise.h"
#include "ops/linear.h"

namespace moegrad::nn {

/// y = x W^T + b, or without b.      x: [..., in]   W: [out, in]   b: [out]   y: [..., out]
///
/// There is no bias unless the configuration asks for one, as in the models of this library;
/// PyTorch's Linear has one by default. A row of y does not depend on the number of rows.
class Linear final : public Callable<Linear> {
 public:
  struct Config {
    std::int64_t in_features = 0;
    std::int64_t out_features = 0;
    bool bias = false;
    std::int64_t gradient_rows = 0;  // of ops::linear
    Dtype dtype = Dtype::kFloat32;
  };

  /// Zeros: nn::init_weights draws the weight and leaves the bias zero. ValueError for a size
  /// outside [1, 2^31).
  explicit Linear(const Config& config)
      : Linear(Tensor::zeros({detail::layer_size("Linear", "out_features", config.out_features),
                              detail::layer_size("Linear", "in_features", config.in_features)},
                             config.dtype),
               config.bias ? Tensor::zeros({config.out_features}, config.dtype) : Tensor(),
               config.gradient_rows) {}
  /// Shares `weight` [out, in], and `bias` [out] if there is to be one, with their owner (a tied
  /// output head: Note [Uses of a tied weight]). ShapeError and DtypeError unless they fit.
  explicit Linear(Tensor weight, Tensor bias = {}, std::int64_t gradient_rows = 0)
      : gradient_rows_(gradient_rows), weight_(std::move(weight)), bias_(std::move(bias)) {
    check<ShapeError>(weight_.ndim() == 2, "Linear: weight must be [out, in], got ",
                      weight_.shape());
    check<ValueError>(gradient_rows >= 0, "Linear: gradient_rows must not be negative, got ",
                      gradient_rows);
    register_parameter("weight", weight_, {.role = ParameterLayout::Role::kLinear},
                       InitialValues::normal());
    if (!bias_.defined()) return;
    check<ShapeError>(bias_.shape() == Shape{weight_.dim(0)}, "Linear: bias must be [",
                      weight_.dim(0), "] to match weight ", weight_.shape(), ", got ",
                      bias_.shape());
    check<DtypeError>(bias_.dtype() == weight_.dtype(), "Linear: weight is ", weight_.dtype(),
                      " but bias is ", bias_.dtype());
    register_parameter("bias", bias_, InitialValues::zeros());
  }

  Tensor forward(const Tensor& x) {
    const Tensor y = ops::linear(operand(*this, x), weight_operand(*this, weight_), gradient_rows_);
    return bias_.defined() ? ops::cast(y + bias_, y.dtype()) : y;
  }

  const Tensor& weight() const { return weight_; }
  /// Undefined without a bias.
  const Tensor& bias() const { return bias_; }

 private:
  std::int64_t gradient_rows_;
  Tensor weight_;  // [out, in]
  Tensor bias_;    // [out]
};

}  // namespace moegrad::nn
