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
// x is read, and g rounded, in the dtype of W.
class Linear final : public Function {
 public:
  Linear(std::int64_t gradient_rows, Dtype dtype) : gradient_rows_(gradient_rows), dtype_(dtype) {}

  std::string_view name() const override { return "linear"; }
  bool reads_nz(std::size_t i) const override { return i == 1; }
  bool may_wait(std::size_t i) const override { return i == 1; }
  double flops() const override {
    return 2.0 * static_cast<double>(edges()[0].shape[-1]) * Function::flops();
  }

  Tensor forward(const Tensor& x, const Tensor& weight) {
    x_ = x;
    weight_ = weight;
    const Tensor rows = as_matrix(cast(x, weight.dtype()));
    Tensor y = Tensor::empty({rows.dim(0), weight.dim(0)}, dtype_);
    multiply_rows(rows, stored_matrices(weight, 1, true)[0], y);
    return with_last_dim(y, x.shape());
  }

  TensorList backward(const TensorList& grads, InputMask needs) override {
    const Tensor grad_output = as_matrix(contiguous(grads[0]));
    const Tensor x = needs[1] ? as_matrix(x_.unpack()) : Tensor();
    const Tensor weight = needs[0] ? weight_.unpack() : Tensor();
    const auto dtype = edges()[1].dtype;
    const auto rows = grad_output.dim(0), most = gradient_rows_ == 0 ? rows : gradient_rows_;
    Tensor grad_x, grad_weight;
    const auto multiply_into = [&](const Tensor& g, std::int64_t begin) {
      Tensor part = Tensor::narrow(grad_x, 0, begin, g.dim(0));
      multiply_rows(g, stored_matrices(weight, 1, false)[0], part);
    };
    // Rounded run by run, so that a narrow copy of the logits' gradient never exists as a whole.
    const bool rounds = grad_output.dtype() != dtype;
    if (needs[0]) grad_x = Tensor::empty({rows, edges()[1].shape[1]}, dtype);
    if (needs[0] && !rounds) multiply_into(grad_output, 0);
    if (needs[1]) grad_weight = Tensor::empty(edges()[1].shape, arithmetic_dtype(dtype));
    std::int64_t begin = 0;
    do {  // runs once even without rows, where the sums are zero
      const auto count = std::min(most, rows - begin);
      const Tensor g = cast(Tensor::narrow(grad_output, 0, begin, count), dtype);
      if (needs[0] && rounds) multiply_into(g, begin);
      if (needs[1]) {
        multiply_columns(g, cast(Tensor::narrow(x, 0, begin, count), dtype), begin > 0,
                         grad_weight);
      }
      begin += count;
    } while (begin < rows);
    if (needs[0]) grad_x = with_last_dim(grad_x, edges()[0].shape);
    return {grad_x, grad_weight};
  }

 private:
  std::int64_t gradient_rows_;
  Dtype dtype_;
  SavedTensor x_{*this}, weight_{*this};
};

}  // namespace

Tensor linear(const Tensor& x, const Tensor& weight, std::int64_t gradient_rows,
              std::optional<Dtype> dtype) {
  check_operands("linear", x, weight);
  check<ShapeError>(x.ndim() >= 1, "linear: x needs a last dimension, got ", x.shape());
  check<ShapeError>(weight.ndim() == 2, "linear: weight must be [out, in], got ", weight.shape());
  check<ShapeError>(weight.dim(1) == x.dim(-1), "linear: weight must be [out, ", x.dim(-1),
                    "] to match x ", x.shape(), ", got ", weight.shape());
  check_blocks("linear", weight, 1);
  check_reals("linear", "x", x);
  const bool wide = dtype == Dtype::kFloat32;
  const bool widens = wide && x.dtype() == Dtype::kBFloat16 && weight.dtype() == Dtype::kFloat32;
  if (!widens) check_same_dtype("linear", "x", x, "weight", weight);
  const auto result = dtype.value_or(weight.dtype());
  check<DtypeError>(result == weight.dtype() || (wide && weight.dtype() == Dtype::kBFloat16),
                    "linear: dtype must be that of the weight, ", weight.dtype(),
                    ", or for bfloat16 float32, got ", result);
  check<ValueError>(gradient_rows >= 0, "linear: gradient_rows must not be negative, got ",
                    gradient_rows);
  return apply<Linear>(made_with(gradient_rows, result), contiguous(x), contiguous(weight));
}

}  // namespace moegrad::ops
