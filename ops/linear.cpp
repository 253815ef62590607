// SPDX-License-Identifier: Apache-2.0
#include "ops/linear.h"

#include <algorithm>

#include "framework/autograd/function.h"
#include "ops/checks.h"
#include "ops/copies.h"
#include "ops/grouped_products.h"

namespace moegrad::ops {
namespace {

// A contiguous [..., n] as a matrix [rows, n].
Tensor as_matrix(const Tensor& x) {
  std::int64_t rows = 1;
  for (std::int64_t i = 0; i < x.ndim() - 1; ++i) rows *= x.dim(i);
  const Shape shape{rows, x.dim(-1)};
  return Tensor::as_strided(x, shape, row_major_strides(shape), x.offset());
}

Tensor with_last_dim(const Tensor& matrix, Shape shape) {
  shape[-1] = matrix.dim(1);
  return Tensor::as_strided(matrix, shape, row_major_strides(shape), matrix.offset());
}

// A grouped product with one group. With g = dL/dy:
//     dL/dx = g W
//     dL/dW = g^T x
class Linear final : public Function {
 public:
  explicit Linear(std::int64_t gradient_rows) : gradient_rows_(gradient_rows) {}

  std::string_view name() const override { return "linear"; }
  bool reads_nz(std::size_t i) const override { return i == 1; }
  bool may_wait(std::size_t i) const override { return i == 1; }
  double flops() const override {
    return 2.0 * static_cast<double>(edges()[0].shape[-1]) * Function::flops();
  }

  Tensor forward(const Tensor& x, const Tensor& weight) {
    x_ = x;
    weight_ = weight;
    const Tensor rows = as_matrix(x);
    return with_last_dim(multiply_row_groups(rows, stored_matrices(weight, 1, true),
                                             {0, rows.dim(0)}, weight.dim(0)),
                         x.shape());
  }

  TensorList backward(const TensorList& grads, InputMask needs) override {
    const Tensor grad_output = as_matrix(contiguous(grads[0]));
    const auto &x = edges()[0].shape, &weight = edges()[1].shape;
    const std::vector<std::int64_t> offsets{0, grad_output.dim(0)};
    Tensor grad_x, grad_weight;
    if (needs[0]) {
      const auto matrices = stored_matrices(weight_.unpack(), 1, false);
      grad_x = with_last_dim(multiply_row_groups(grad_output, matrices, offsets, weight[1]), x);
    }
    if (needs[1]) {
      grad_weight = weight_gradient_of(grad_output, as_matrix(x_.unpack()));
    }
    return {grad_x, grad_weight};
  }

 private:
  Tensor weight_gradient_of(const Tensor& grad_output, const Tensor& x) const {
    const auto rows = x.dim(0), most = gradient_rows_ == 0 ? rows : gradient_rows_;
    Tensor sum = Tensor::empty(edges()[1].shape, gradient_dtype(x.dtype()));
    std::int64_t begin = 0;
    do {  // runs once even without rows, where the sums are zero
      const auto count = std::min(most, rows - begin);
      multiply_columns(Tensor::narrow(grad_output, 0, begin, count),
                       Tensor::narrow(x, 0, begin, count), begin > 0, sum);
      begin += count;
    } while (begin < rows);
    return sum;
  }

  std::int64_t gradient_rows_;
  SavedTensor x_{*this}, weight_{*this};
};

}  // namespace

Tensor linear(const Tensor& x, const Tensor& weight, std::int64_t gradient_rows) {
  check_operands("linear", x, weight);
  check<ShapeError>(x.ndim() >= 1, "linear: x needs a last dimension, got ", x.shape());
  check<ShapeError>(weight.ndim() == 2, "linear: weight must be [out, in], got ", weight.shape());
  check<ShapeError>(weight.dim(1) == x.dim(-1), "linear: weight must be [out, ", x.dim(-1),
                    "] to match x ", x.shape(), ", got ", weight.shape());
  check_blocks("linear", weight, 1);
  check_reals("linear", "x", x);
  check_same_dtype("linear", "x", x, "weight", weight);
  check<ValueError>(gradient_rows >= 0, "linear: gradient_rows must not be negative, got ",
                    gradient_rows);
  return apply<Linear>(made_with(gradient_rows), contiguous(x), contiguous(weight));
}

}  // namespace moegrad::ops
