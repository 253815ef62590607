// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/autograd/function.h"
#include "framework/tensor/tensor.h"
#include "ops/routing.h"

namespace moegrad::ops {

/// The grouped matmul that the experts run, with its gradient written by hand:
///
///     y[rows of e] = x[rows of e] W_e,   e = 0, ..., E - 1
///
/// Saves the handle of the weight, not its bytes, which may have been released and refilled
/// between forward and backward (Note [Storage that is freed and refilled]).
class NpuGMMOp final : public Function {
 public:
  explicit NpuGMMOp(RowGroups groups) : groups_(std::move(groups)) {}

  std::string_view name() const override { return "npu_gmm"; }
  bool reads_nz(std::size_t i) const override { return i == 0; }
  bool may_wait(std::size_t i) const override { return i == 0; }
  double flops() const override {
    return 2.0 * static_cast<double>(edges()[1].shape[1]) * Function::flops();
  }

  Tensor forward(const Tensor& weight, const Tensor& x);
  TensorList backward(const TensorList& grads, InputMask needs) override;

 private:
  RowGroups groups_;
  SavedTensor weight_{*this}, x_{*this};
};

/// weight: [E, K, N] or [E * K, N], ND or FRACTAL_NZ blocks of that   x: [M, K]
/// tokens_per_expert: E counts, summing to M   -> [M, N]
///
/// Differentiable in weight and x; the weight's gradient is row-major ND of the weight's shape. A
/// weight [E, K, N] may be the transposed view of [E, N, K]. Errors: ShapeError, LayoutError for
/// other blocks, ValueError for counts, DtypeError unless both are float32, float64 or bfloat16
/// (Note [bfloat16 products]); the gradient of a bfloat16 weight is float32.
///
/// The general form of the operator, without a gradient, is npu_grouped_matmul.
Tensor npu_gmm(const Tensor& weight, const Tensor& x,
               const std::vector<std::int64_t>& tokens_per_expert);

/// The same for groups that may come from several sources. The weight's gradient is the sum of one
/// product per source (Note [The sum of a gradient]).
Tensor npu_gmm(const Tensor& weight, const Tensor& x, const RowGroups& groups);

}  // namespace moegrad::ops
