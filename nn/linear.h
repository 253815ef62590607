// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "framework/distributed/process_group.h"
#include "framework/runtime/error.h"
#include "nn/layer_size.h"
#include "nn/module.h"
#include "nn/operand.h"
#include "ops/elementwise.h"
#include "ops/linear.h"
#include "ops/linear_cross_entropy.h"

namespace moegrad::nn {

/// How the ranks of a group divide a Linear (Note [Linear layers on several ranks]).
struct LinearDivision {
  enum class Side : std::uint8_t {
    kColumns,  // each has rows of W, and the elements of b beside them
    kRows,     // each has columns of W, and all of b
  };

  std::shared_ptr<ProcessGroup> group;
  Side side = Side::kColumns;
  /// Each rank has its part of the rows of x (kColumns) or of y (kRows).
  bool divided_rows = false;
  /// What would be a part otherwise is alike on all ranks: y (kColumns) or x (kRows).
  bool whole_features = false;
  std::int64_t tiles = 1;  // of ops::ParallelLinearOptions
};

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

  Tensor forward(const Tensor& x) { return product(x); }
  /// The same in `dtype` (ops::linear), for a call through call_method.
  Tensor product(const Tensor& x, std::optional<Dtype> dtype = std::nullopt);
  /// ops::linear_cross_entropy of x and the weight, without a bias. The same.
  Tensor cross_entropy(const Tensor& x, const Tensor& targets, ops::CrossEntropyOptions options);

  /// Computes with this rank's part of the weight from now on, which is in its place: what
  /// parallel::parallelize_module calls. ValueError for a group that is null.
  void divide(LinearDivision division);
  const std::optional<LinearDivision>& division() const { return division_; }

  const Tensor& weight() const { return weight_; }
  /// Undefined without a bias.
  const Tensor& bias() const { return bias_; }

 private:
  std::int64_t gradient_rows_;
  Tensor weight_;  // [out, in]
  Tensor bias_;    // [out]
  std::optional<LinearDivision> division_;
};

}  // namespace moegrad::nn
