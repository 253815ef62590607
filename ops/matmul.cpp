// SPDX-License-Identifier: Apache-2.0
#include "ops/matmul.h"

#include <span>
#include <string_view>

#include "framework/autograd/function.h"
#include "framework/tensor/fill.h"
#include "ops/broadcast.h"
#include "ops/checks.h"
#include "ops/copies.h"
#include "ops/grouped_products.h"
#include "ops/kernels/halving.h"
#include "ops/views.h"

namespace moegrad::ops {
namespace {

// Matrix i of a contiguous operand [B, rows, columns], or the only one of [rows, columns].
Tensor matrix_of(const Tensor& x, std::int64_t i) {
  const auto rows = x.dim(-2), columns = x.dim(-1);
  const auto step = x.ndim() == 3 ? rows * columns : 0;
  return Tensor::as_strided(x, {rows, columns}, {columns, 1}, x.offset() + i * step);
}

StoredMatrix right_operand(const Tensor& x, std::int64_t i, bool transposed) {
  return stored_matrices(matrix_of(x, i), 1, transposed)[0];
}

// With g = dL/dc:  dL/da = g b^T  and  dL/db = a^T g,  per matrix of the batch. The gradient of an
// operand that all of them share is the sum of theirs by halving, down to one matrix.
class Matmul final : public Function {
 public:
  std::string_view name() const override { return "matmul"; }
  double flops() const override {
    return 2.0 * static_cast<double>(edges()[0].shape[-1]) * Function::flops();
  }

  Tensor forward(const Tensor& a, const Tensor& b) {
    a_ = a;
    b_ = b;
    const auto m = a.dim(-2), n = b.dim(-1);
    const bool batched = a.ndim() == 3 || b.ndim() == 3;
    batch_ = a.ndim() == 3 ? a.dim(0) : b.ndim() == 3 ? b.dim(0) : 1;
    Tensor c = Tensor::empty(batched ? Shape{batch_, m, n} : Shape{m, n}, a.dtype());
    for (std::int64_t i = 0; i < batch_; ++i) {
      Tensor product = matrix_of(c, i);
      multiply_rows(matrix_of(a, i), right_operand(b, i, false), product);
    }
    return c;
  }

  TensorList backward(const TensorList& grads, InputMask needs) override {
    const Tensor grad_c = contiguous(grads[0]), a = a_.unpack(), b = b_.unpack();
    return {needs[0] ? grad_a(grad_c, a, b) : Tensor(), needs[1] ? grad_b(grad_c, a, b) : Tensor()};
  }

 private:
  Tensor grad_a(const Tensor& grad_c, const Tensor& a, const Tensor& b) const {
    return gradient_of(a, [&](std::int64_t i, bool adds, Tensor& sum) {
      Tensor product = adds ? Tensor::empty(sum.shape(), a.dtype()) : sum;
      multiply_rows(matrix_of(grad_c, i), right_operand(b, i, true), product);
      if (adds) add_(sum, product);
    });
  }

  Tensor grad_b(const Tensor& grad_c, const Tensor& a, const Tensor& b) const {
    return gradient_of(b, [&](std::int64_t i, bool adds, Tensor& sum) {
      multiply_columns(matrix_of(a, i), matrix_of(grad_c, i), adds, sum);
    });
  }

  // The gradient of x from term(i, adds, sum), which sets `sum` to that of matrix i or adds it.
  template <class Term>
  Tensor gradient_of(const Tensor& x, const Term& term) const {
    if (batch_ == 0) return zeros_like(x);
    Tensor result = empty_like(x);
    if (x.ndim() == 3) {
      for (std::int64_t i = 0; i < batch_; ++i) {
        Tensor each = matrix_of(result, i);
        term(i, false, each);
      }
      return result;
    }
    TensorList levels{result};
    for (auto level = kernels::most_levels(batch_, 1, 1, false); level > 1; --level) {
      levels.push_back(empty_like(x));
    }
    kernels::for_each_part(
        0, batch_, 1, 1, 0, false,
        [&](std::int64_t i, std::int64_t, int level, bool adds) {
          term(i, adds, levels[static_cast<std::size_t>(level)]);
        },
        [&](int level) {
          add_(levels[static_cast<std::size_t>(level)],
               levels[static_cast<std::size_t>(level) + 1]);
        });
    return result;
  }

  std::int64_t batch_ = 1;
  SavedTensor a_{*this}, b_{*this};
};

Shape batch_of(const Tensor& x) { return Shape(std::span(x.shape().begin(), x.shape().end() - 2)); }

// As matrices [B, rows, columns], repeated to the common batch dimensions. One that all products
// share stays one matrix.
Tensor as_batch(const Tensor& x, const Shape& batch) {
  if (batch_of(x).numel() == 1) return reshape(x, {x.dim(-2), x.dim(-1)});
  Shape wide = batch;
  wide.push_back(x.dim(-2));
  wide.push_back(x.dim(-1));
  return reshape(expand(x, wide), {batch.numel(), x.dim(-2), x.dim(-1)});
}

Tensor multiply_batches(const Tensor& a, const Tensor& b) {
  check<ShapeError>(a.dim(-1) == b.dim(-2), "matmul: inner sizes must agree, got ", a.shape(),
                    " and ", b.shape());
  auto shape = broadcast_shapes("matmul", batch_of(a), batch_of(b));
  const Tensor c = matmul(as_batch(a, shape), as_batch(b, shape));  // [B, M, N] or [M, N]
  shape.push_back(c.dim(-2));
  shape.push_back(c.dim(-1));
  return view(c, shape);
}

}  // namespace

void check_matmul_operands(std::string_view op, const Tensor& a, const Tensor& b) {
  check_operands(op, a, b);
  check<ShapeError>((a.ndim() == 2 || a.ndim() == 3) && (b.ndim() == 2 || b.ndim() == 3), op,
                    ": operands must have 2 or 3 dimensions, got ", a.shape(), " and ", b.shape());
  check<ShapeError>(a.dim(-1) == b.dim(-2), op, ": inner sizes must agree, got ", a.shape(),
                    " and ", b.shape());
  check<ShapeError>(a.ndim() == 2 || b.ndim() == 2 || a.dim(0) == b.dim(0), op,
                    ": batch sizes must agree, got ", a.shape(), " and ", b.shape());
  check<DtypeError>(is_floating(a.dtype()) && a.dtype() == b.dtype(), op,
                    ": needs two operands of float32 or of float64, got ", a.dtype(), " and ",
                    b.dtype(), cast_hint(a.dtype(), b.dtype()));
}

Tensor matmul(const Tensor& a, const Tensor& b) {
  check_operands("matmul", a, b);
  check<ShapeError>(a.ndim() >= 1 && b.ndim() >= 1,
                    "matmul: operands must have at least one dimension, got ", a.shape(), " and ",
                    b.shape());
  if (a.ndim() == 1) return squeeze(matmul(unsqueeze(a, 0), b), b.ndim() == 1 ? 0 : -2);
  if (b.ndim() == 1) return squeeze(matmul(a, unsqueeze(b, 1)), -1);
  if (a.ndim() <= 3 && b.ndim() <= 3 && (a.ndim() == 2 || b.ndim() == 2 || a.dim(0) == b.dim(0))) {
    check_matmul_operands("matmul", a, b);
    return apply<Matmul>(contiguous(a), contiguous(b));
  }
  return multiply_batches(a, b);
}

}  // namespace moegrad::ops
