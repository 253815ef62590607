// SPDX-License-Identifier: Apache-2.0
#include "ops/npu_gmm.h"

#include <memory>

#include "ops/checks.h"
#include "ops/copies.h"
#include "ops/grouped_products.h"
#include "ops/views.h"

namespace moegrad::ops {
namespace {

bool is_transposed_view(const Tensor& weight) {
  return weight.ndim() == 3 && weight.layout() == Layout::kND && !weight.is_contiguous() &&
         transpose(weight.detach(), 1, 2).is_contiguous();
}

// The matrices W_e, or their transposes. A transposed view is read as what it is a view of.
std::vector<StoredMatrix> matrices_of(const Tensor& weight, std::int64_t experts, bool transposed) {
  if (!is_transposed_view(weight)) return stored_matrices(weight, experts, transposed);
  return stored_matrices(transpose(weight, 1, 2), experts, !transposed);
}

void check_shapes(const Tensor& weight, const Tensor& x, std::int64_t experts) {
  check_operands("npu_gmm", weight, x);
  check<ShapeError>(x.ndim() == 2, "npu_gmm: x must be [M, K], got ", x.shape());
  check<ShapeError>(weight.ndim() == 2 || weight.ndim() == 3,
                    "npu_gmm: weight must be [E, K, N] or [E * K, N], got ", weight.shape());
  const auto k = x.dim(1), n = weight.dim(-1);
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
}

}  // namespace

Tensor NpuGMMOp::forward(const Tensor& weight, const Tensor& x) {
  weight_ = weight;
  x_ = x;
  return multiply_row_groups(x, matrices_of(weight, groups_.experts(), false), groups_.offsets(),
                             weight.dim(-1));
}

// With g = dL/dy, for the rows of each expert:
//     dL/dx = g W^T     groups of rows, the weight transposed
//     dL/dW = x^T g     groups of the reduction, which is over rows
TensorList NpuGMMOp::backward(const TensorList& grads, InputMask needs) {
  const Tensor grad_output = contiguous(grads[0]);
  Tensor grad_weight, grad_x;
  if (needs[0]) grad_weight = weight_gradient(*this, 0, x_.unpack(), grad_output, groups_);
  if (needs[1]) {
    grad_x =
        multiply_row_groups(grad_output, matrices_of(weight_.unpack(), groups_.experts(), true),
                            groups_.offsets(), edges()[1].shape[1]);
  }
  return {grad_weight, grad_x};
}

Tensor npu_gmm(const Tensor& weight, const Tensor& x,
               const std::vector<std::int64_t>& tokens_per_expert) {
  check_shapes(weight, x, std::ssize(tokens_per_expert));
  std::int64_t rows = 0;
  for (std::size_t e = 0; e < tokens_per_expert.size(); ++e) {
    check<ValueError>(tokens_per_expert[e] >= 0,
                      "npu_gmm: tokens_per_expert must not be negative, got ", tokens_per_expert[e],
                      " for expert ", e);
    rows += tokens_per_expert[e];
  }
  check<ValueError>(rows == x.dim(0), "npu_gmm: tokens_per_expert must add up to the ", x.dim(0),
                    " rows of x, got ", rows);
  return npu_gmm(weight, x, RowGroups(1, tokens_per_expert));
}

Tensor npu_gmm(const Tensor& weight, const Tensor& x, const RowGroups& groups) {
  check<ValueError>(!weight.defined() || weight.ndim() != 3 || groups.experts() == weight.dim(0),
                    "npu_gmm: groups must be of the ", weight.defined() ? weight.dim(0) : 0,
                    " experts of the weight, got ", groups.experts());
  check_shapes(weight, x, groups.experts());
  check<ValueError>(groups.rows() == x.dim(0), "npu_gmm: groups must have the ", x.dim(0),
                    " rows of x, got ", groups.rows());
  check_reals("npu_gmm", "x", x);
  check_same_dtype("npu_gmm", "x", x, "weight", weight);
  return apply<NpuGMMOp>(made_with(groups),
                         is_transposed_view(weight) ? weight : contiguous(weight), contiguous(x));
}

}  // namespace moegrad::ops
