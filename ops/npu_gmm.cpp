// SPDX-License-Identifier: Apache-2.0
#include "ops/npu_gmm.h"

#include "ops/checks.h"
#include "ops/compat/npu_grouped_matmul.h"
#include "ops/copies.h"
#include "ops/grouped_products.h"
#include "ops/views.h"

namespace moegrad::ops {
namespace {

NpuGroupedMatmulOptions by_counts(const Tensor& tokens_per_expert, int group_type, int split_item) {
  return {.group_list = tokens_per_expert,
          .group_type = group_type,
          .group_list_type = 1,
          .split_item = split_item};
}

// weight [E * K, N] as [E, K, N].
Tensor stacked(const Tensor& weight, std::int64_t experts, std::int64_t k) {
  return weight.ndim() == 3 ? weight : view(weight, {experts, k, weight.dim(1)});
}

bool is_transposed_view(const Tensor& weight) {
  return weight.ndim() == 3 && weight.layout() == Layout::kND && !weight.is_contiguous() &&
         transpose(weight.detach(), 1, 2).is_contiguous();
}

}  // namespace

Tensor NpuGMMOp::forward(const Tensor& weight, const Tensor& x, const Tensor& tokens_per_expert) {
  weight_ = weight;
  x_ = x;
  tokens_per_expert_ = tokens_per_expert;
  return npu_grouped_matmul({x}, {stacked(weight, tokens_per_expert.dim(0), x.dim(1))},
                            by_counts(tokens_per_expert, 0, 2))[0];
}

// With g = dL/dy, for the rows of each expert:
//     dL/dx = g W^T     groups of rows, the weight transposed
//     dL/dW = x^T g     groups of the reduction, which is over rows
TensorList NpuGMMOp::backward(const TensorList& grads, InputMask needs) {
  const Tensor grad_output = row_major(grads[0]);
  const Tensor weight = weight_.unpack(), x = x_.unpack(), tokens = tokens_per_expert_.unpack();
  Tensor grad_weight, grad_x;
  if (needs[0]) {
    const auto options = by_counts(tokens, 2, 3);
    grad_weight =
        view(npu_grouped_matmul({transpose(x, 0, 1)}, {grad_output}, options)[0], weight.shape());
  }
  if (needs[1]) {
    auto options = by_counts(tokens, 0, 2);
    options.transpose_weight = true;
    grad_x =
        npu_grouped_matmul({grad_output}, {stacked(weight, tokens.dim(0), x.dim(1))}, options)[0];
  }
  return {grad_weight, grad_x, Tensor()};
}

Tensor npu_gmm(const Tensor& weight, const Tensor& x, const Tensor& tokens_per_expert) {
  check_operands("npu_gmm", weight, x, tokens_per_expert);
  check<ShapeError>(x.ndim() == 2, "npu_gmm: x must be [M, K], got ", x.shape());
  check<ShapeError>(tokens_per_expert.ndim() == 1, "npu_gmm: tokens_per_expert must be [E], got ",
                    tokens_per_expert.shape());
  check<ShapeError>(weight.ndim() == 2 || weight.ndim() == 3,
                    "npu_gmm: weight must be [E, K, N] or [E * K, N], got ", weight.shape());
  const auto experts = tokens_per_expert.dim(0), k = x.dim(1), n = weight.dim(-1);
  check<ShapeError>(
      weight.shape() == (weight.ndim() == 3 ? Shape{experts, k, n} : Shape{experts * k, n}),
      "npu_gmm: weight must be [", experts, ", ", k, ", N] or [", experts * k, ", N] for ", experts,
      " experts and x ", x.shape(), ", got ", weight.shape());
  if (weight.layout() == Layout::kNZ) {
    const auto& blocks = weight.nz_blocks();
    check<LayoutError>((blocks == NzBlocks{experts, k, n}), "npu_gmm: weight must be blocks of ",
                       Shape{experts, k, n}, ", got blocks of ",
                       Shape{blocks.batch, blocks.k, blocks.n});
  }
  check<DtypeError>(tokens_per_expert.dtype() == Dtype::kInt64,
                    "npu_gmm: tokens_per_expert must be int64, got ", tokens_per_expert.dtype());
  check<DtypeError>(is_floating(x.dtype()), "npu_gmm: x must be float32 or float64, got ",
                    x.dtype());
  check<DtypeError>(weight.dtype() == x.dtype(), "npu_gmm: x is ", x.dtype(), " but weight is ",
                    weight.dtype());
  return apply<NpuGMMOp>(is_transposed_view(weight) ? weight : contiguous(weight), contiguous(x),
                         tokens_per_expert);
}

}  // namespace moegrad::ops
