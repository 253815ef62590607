// SPDX-License-Identifier: Apache-2.0
#include "ops/linear.h"

#include <algorithm>

#include "framework/autograd/function.h"
#include "ops/checks.h"
#include "ops/copies.h"
#include "ops/grouped_products.h"
#include "ops/linear_products.h"

namespace moegrad::ops {
namespace {

// A grouped product with one group. With g = dL/dy:
//     dL/dx = g W
//     dL/dW = g^T x
// x is read, and g rounded, in the dtype of W.
class Linear final : public Function {
 public:
  explicit Linear(const LinearArguments& arguments) : arguments_(arguments) {}

  std::string_view name() const override { return "linear"; }
  bool reads_nz(std::size_t i) const override { return i == 1; }
  bool may_wait(std::size_t i) const override { return i == 1; }
  double flops() const override {
    return 2.0 * static_cast<double>(edges()[0].shape[-1]) * Function::flops();
  }

  Tensor forward(const Tensor& x, const Tensor& weight) {
    x_ = x;
    weight_ = weight;
    return linear_product(x, weight, arguments_.dtype);
  }

  TensorList backward(const TensorList& grads, InputMask needs) override {
    const Tensor g = as_matrix(contiguous(grads[0]));
    const auto& of_weight = edges()[1];
    Tensor grad_x, grad_weight;
    if (needs[0]) grad_x = Tensor::empty({g.dim(0), of_weight.shape[1]}, of_weight.dtype);
    if (needs[1]) grad_weight = Tensor::empty(of_weight.shape, arithmetic_dtype(of_weight.dtype));
    linear_gradients(g, needs[1] ? as_matrix(x_.unpack()) : Tensor(),
                     needs[0] ? weight_.unpack() : Tensor(), of_weight.dtype,
                     arguments_.gradient_rows, grad_x, grad_weight);
    if (needs[0]) grad_x = with_last_dim(grad_x, edges()[0].shape);
    return {grad_x, grad_weight};
  }

 private:
  LinearArguments arguments_;
  SavedTensor x_{*this}, weight_{*this};
};

}  // namespace

LinearArguments checked_linear(std::string_view op, const Tensor& x, const Tensor& weight,
                               std::int64_t gradient_rows, std::optional<Dtype> dtype) {
  check_operands(op, x, weight);
  check<ShapeError>(x.ndim() >= 1, op, ": x needs a last dimension, got ", x.shape());
  check<ShapeError>(weight.ndim() == 2, op, ": weight must be [out, in], got ", weight.shape());
  check<ShapeError>(weight.dim(1) == x.dim(-1), op, ": weight must be [out, ", x.dim(-1),
                    "] to match x ", x.shape(), ", got ", weight.shape());
  check_blocks(op, weight, 1);
  check_reals(op, "x", x);
  const bool wide = dtype == Dtype::kFloat32;
  const bool widens = wide && x.dtype() == Dtype::kBFloat16 && weight.dtype() == Dtype::kFloat32;
  if (!widens) check_same_dtype(op, "x", x, "weight", weight);
  const auto result = dtype.value_or(weight.dtype());
  check<DtypeError>(result == weight.dtype() || (wide && weight.dtype() == Dtype::kBFloat16), op,
                    ": dtype must be that of the weight, ", weight.dtype(),
                    weight.dtype() == Dtype::kBFloat16 ? ", or float32, got " : ", got ", result);
  check<ValueError>(gradient_rows >= 0, op, ": gradient_rows must not be negative, got ",
                    gradient_rows);
  return {.gradient_rows = gradient_rows, .dtype = result};
}

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

Tensor linear_product(const Tensor& x, const Tensor& weight, Dtype dtype) {
  const Tensor rows = as_matrix(cast(x, weight.dtype()));
  Tensor y = Tensor::empty({rows.dim(0), weight.dim(0)}, dtype);
  multiply_rows(rows, stored_matrices(weight, 1, true)[0], y);
  return with_last_dim(y, x.shape());
}

void linear_gradients(const Tensor& g, const Tensor& x, const Tensor& weight, Dtype dtype,
                      std::int64_t gradient_rows, Tensor& grad_x, Tensor& grad_weight) {
  const auto rows = g.dim(0), most = gradient_rows == 0 ? rows : gradient_rows;
  const auto multiply_into = [&](const Tensor& part_of_g, std::int64_t begin) {
    Tensor part = Tensor::narrow(grad_x, 0, begin, part_of_g.dim(0));
    multiply_rows(part_of_g, stored_matrices(weight, 1, false)[0], part);
  };
  // Rounded run by run, so that a narrow copy of the logits' gradient never exists as a whole.
  const bool rounds = g.dtype() != dtype;
  if (grad_x.defined() && !rounds) multiply_into(g, 0);
  if (!rounds && !grad_weight.defined()) return;
  std::int64_t begin = 0;
  do {  // runs once even without rows, where the sums are zero
    const auto count = std::min(most, rows - begin);
    const Tensor part = cast(Tensor::narrow(g, 0, begin, count), dtype);
    if (grad_x.defined() && rounds) multiply_into(part, begin);
    if (grad_weight.defined()) {
      multiply_columns(part, cast(Tensor::narrow(x, 0, begin, count), dtype), begin > 0,
                       grad_weight);
    }
    begin += count;
  } while (begin < rows);
}

Tensor linear(const Tensor& x, const Tensor& weight, std::int64_t gradient_rows,
              std::optional<Dtype> dtype) {
  const auto arguments = checked_linear("linear", x, weight, gradient_rows, dtype);
  return apply<Linear>(made_with(arguments), contiguous(x), contiguous(weight));
}

}  // namespace moegrad::ops
