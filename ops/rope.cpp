// SPDX-License-Identifier: Apache-2.0
// Shapes: T tokens, N heads, D head dimension.
#include "ops/rope.h"

#include <memory>
#include <string_view>

#include "framework/autograd/function.h"
#include "framework/runtime/math/elementary.h"
#include "framework/tensor/dispatch_any.h"
#include "ops/checks.h"
#include "ops/copies.h"
#include "ops/kernels/rope.h"
#include "ops/split_cat.h"
#include "ops/views.h"

namespace moegrad::ops {
namespace {

Tensor rotate(const Tensor& x, const Tensor& cos, const Tensor& sin, double direction) {
  Tensor y = Tensor::empty(x.shape(), x.dtype());
  dispatch_reals(x.dtype(), [&]<class S>() {
    using T = ArithmeticOf<S>;
    kernels::rope_rotate(x.data<S>().data(), cos.data<T>().data(), sin.data<T>().data(),
                         static_cast<T>(direction), y.mutable_data<S>().data(), x.dim(0), x.dim(1),
                         x.dim(2));
  });
  return y;
}

// y = R x with a rotation R, so dL/dx = R^T dL/dy: the rotation by the opposite angle.
class Rope final : public Function {
 public:
  std::string_view name() const override { return "rope"; }

  Tensor forward(const Tensor& x, const Tensor& cos, const Tensor& sin) {
    cos_ = cos;
    sin_ = sin;
    return rotate(x, cos, sin, 1.0);
  }

  TensorList backward(const TensorList& grads, InputMask needs) override {
    if (!needs[0]) return {Tensor(), Tensor(), Tensor()};
    return {rotate(contiguous(grads[0]), cos_.unpack(), sin_.unpack(), -1.0), Tensor(), Tensor()};
  }

 private:
  SavedTensor cos_{*this};
  SavedTensor sin_{*this};
};

}  // namespace

RopeTable rope_table(const Tensor& positions, std::int64_t head_dim, double theta, Dtype dtype) {
  check_operands("rope_table", positions);
  check<ShapeError>(positions.ndim() == 1, "rope_table: positions must be [T], got ",
                    positions.shape());
  check<DtypeError>(positions.dtype() == Dtype::kInt64, "rope_table: positions must be int64, got ",
                    positions.dtype());
  check<ValueError>(head_dim >= 2 && head_dim % 2 == 0,
                    "rope_table: head_dim must be even and at least 2, got ", head_dim);
  check<ValueError>(theta > 0, "rope_table: theta must be positive, got ", theta);
  const Tensor row = contiguous(positions);
  const auto tokens = row.dim(0);
  const auto half = head_dim / 2;
  RopeTable table{.cos = Tensor::empty({tokens, half}, dtype),
                  .sin = Tensor::empty({tokens, half}, dtype)};
  dispatch_floating(dtype, [&]<class T>() {
    const auto position = row.data<std::int64_t>();
    const auto cos = table.cos.mutable_data<T>();
    const auto sin = table.sin.mutable_data<T>();
    for (std::int64_t i = 0; i < half; ++i) {
      const double inv_freq =
          math::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
      for (std::int64_t t = 0; t < tokens; ++t) {
        const double angle = static_cast<double>(position[static_cast<std::size_t>(t)]) * inv_freq;
        const auto at = static_cast<std::size_t>(t * half + i);
        cos[at] = static_cast<T>(math::cos(angle));
        sin[at] = static_cast<T>(math::sin(angle));
      }
    }
  });
  return table;
}

void check_rope_table(std::string_view op, const Tensor& x, const RopeTable& table) {
  const Shape expected{x.dim(0), x.dim(2) / 2};
  check<ShapeError>(table.cos.shape() == expected && table.sin.shape() == expected, op,
                    ": table must be ", expected, " to match x ", x.shape(), ", got cos ",
                    table.cos.shape(), " and sin ", table.sin.shape());
  check_reals(op, "x", x);
  if (x.dtype() == Dtype::kBFloat16) {
    check_arithmetic_dtype(op, "x", x, "cos", table.cos);
    check_arithmetic_dtype(op, "x", x, "sin", table.sin);
    return;
  }
  check<DtypeError>(table.cos.dtype() == x.dtype() && table.sin.dtype() == x.dtype(), op, ": x is ",
                    x.dtype(), " but the table is ", table.cos.dtype(), " and ", table.sin.dtype(),
                    cast_hint(table.cos.dtype(), table.sin.dtype()));
}

Tensor rope(const Tensor& x, const RopeTable& table) {
  check_operands("rope", x, table.cos, table.sin);
  check<ShapeError>(x.ndim() == 3, "rope: x must be [T, N, D], got ", x.shape());
  check<ShapeError>(x.dim(2) % 2 == 0, "rope: the last dimension of x must be even, got ",
                    x.shape());
  check_rope_table("rope", x, table);
  // Positions are data: the table carries no gradient.
  return apply<Rope>(contiguous(x), contiguous(table.cos.detach()), contiguous(table.sin.detach()));
}

Tensor partial_rope(const Tensor& x, const RopeTable& table) {
  check_operands("partial_rope", x, table.cos, table.sin);
  check<ShapeError>(x.ndim() == 3, "partial_rope: x must be [T, N, D], got ", x.shape());
  check<ShapeError>(table.cos.ndim() == 2 && 2 * table.cos.dim(1) <= x.dim(2),
                    "partial_rope: table must be [", x.dim(0), ", R/2] with R <= ", x.dim(2),
                    " to match x ", x.shape(), ", got cos ", table.cos.shape());
  const auto rotated = 2 * table.cos.dim(1), rest = x.dim(2) - rotated;
  if (rest == 0) return rope(x, table);
  return cat({rope(narrow(x, 2, 0, rotated), table), narrow(x, 2, rotated, rest)}, 2);
}

}  // namespace moegrad::ops
