// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>

#include "framework/autograd/function.h"
#include "framework/tensor/tensor.h"

namespace moegrad::ops {

/// y = npu_grouped_matmul by counts. Its gradient uses the same operator:
///
///     y[rows of e] = x[rows of e] W_e,   e = 0, ..., E - 1
///
/// Saves the handle of the weight, not its bytes, which may have been released and refilled
/// between forward and backward (Note [Storage that is freed and refilled]).
class NpuGMMOp final : public Function {
 public:
  std::string_view name() const override { return "npu_gmm"; }
  bool reads_nz(std::size_t i) const override { return i == 0; }
  double flops() const override {
    return 2.0 * static_cast<double>(edges()[1].shape[1]) * Function::flops();
  }

  Tensor forward(const Tensor& weight, const Tensor& x, const Tensor& tokens_per_expert);
  TensorList backward(const TensorList& grads, InputMask needs) override;

 private:
  SavedTensor weight_{*this}, x_{*this}, tokens_per_expert_{*this};
};

/// weight: [E, K, N] or [E * K, N], ND or FRACTAL_NZ blocks of that   x: [M, K]
/// tokens_per_expert: int64 [E], summing to M   -> [M, N]
///
/// Differentiable in weight and x; the weight's gradient is row-major ND of the weight's shape. A
/// weight [E, K, N] may be the transposed view of [E, N, K].
Tensor npu_gmm(const Tensor& weight, const Tensor& x, const Tensor& tokens_per_expert);

}  // namespace moegrad::ops
