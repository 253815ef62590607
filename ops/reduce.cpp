// SPDX-License-Identifier: Apache-2.0
#include "ops/reduce.h"

#include <memory>
#include <string_view>

#include "framework/autograd/function.h"
#include "framework/tensor/fill.h"
#include "ops/checks.h"
#include "ops/copies.h"
#include "ops/dims.h"
#include "ops/elementwise.h"
#include "ops/kernels/reduce.h"
#include "ops/views.h"

namespace moegrad::ops {
namespace {

// y = sum of a over the middle of [outer, n, inner]: dL/da is dL/dy repeated there.
class Sum final : public Function {
 public:
  Sum(const Extents& extents, bool over_rows) : extents_(extents), over_rows_(over_rows) {}

  std::string_view name() const override { return "sum"; }

  Tensor forward(const Tensor& a, const Shape& shape) {
    shape_ = a.shape();
    Tensor output = Tensor::empty(shape, a.dtype());
    dispatch_floating(a.dtype(), [&]<class T>() {
      const T* const from = a.data<T>().data();
      T* const to = output.mutable_data<T>().data();
      if (over_rows_) return kernels::sum_rows(from, to, extents_.outer, extents_.n);
      kernels::sum_columns(from, to, extents_.outer, extents_.n, extents_.inner);
    });
    return output;
  }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    const Tensor column = view(contiguous(grads[0]), {extents_.outer, 1, extents_.inner});
    return {
        view(moegrad::clone(expand(column, {extents_.outer, extents_.n, extents_.inner})), shape_)};
  }

 private:
  Extents extents_;
  bool over_rows_;  // the last dimension, or all
  Shape shape_;
};

Tensor apply_sum(std::string_view op, const Tensor& a) {
  check_operands(op, a);
  check_floating(op, a);
  return apply<Sum>(made_with(Extents{.n = a.numel()}, true), contiguous(a), Shape{});
}

Tensor apply_sum(std::string_view op, const Tensor& a, std::int64_t dim, bool keepdim) {
  check_operands(op, a);
  dim = wrap_dim(op, dim, a.ndim());
  check_floating(op, a);
  return apply<Sum>(made_with(extents_at(a.shape(), dim), dim == a.ndim() - 1), contiguous(a),
                    reduced_shape(a.shape(), dim, keepdim));
}

// One dimension after the other, the last one first.
Tensor sum_over(std::string_view op, const Tensor& a, const std::vector<std::int64_t>& dims,
                bool keepdim) {
  check_operands(op, a);
  check<ShapeError>(!dims.empty(), op, ": dims must name at least one dimension");
  std::vector<bool> summed(static_cast<std::size_t>(a.ndim()));
  for (const auto each : dims) {
    const auto dim = static_cast<std::size_t>(wrap_dim(op, each, a.ndim()));
    check<ShapeError>(!summed[dim], op, ": dimension ", dim, " is named twice");
    summed[dim] = true;
  }
  check_floating(op, a);
  Tensor total = a;
  for (auto i = a.ndim() - 1; i >= 0; --i) {
    if (summed[static_cast<std::size_t>(i)]) total = apply_sum(op, total, i, keepdim);
  }
  return total;
}

}  // namespace

Tensor sum(const Tensor& a) { return apply_sum("sum", a); }

Tensor sum(const Tensor& a, std::int64_t dim, bool keepdim) {
  return apply_sum("sum", a, dim, keepdim);
}

Tensor sum(const Tensor& a, const std::vector<std::int64_t>& dims, bool keepdim) {
  return sum_over("sum", a, dims, keepdim);
}

Tensor sum(const Tensor& a, std::initializer_list<std::int64_t> dims, bool keepdim) {
  return sum_over("sum", a, dims, keepdim);
}

// Divided, not multiplied with 1 / n, which is rounded: the mean of equal numbers that add up
// exactly is that number.
Tensor mean(const Tensor& a) {
  const Tensor total = apply_sum("mean", a);
  return total / static_cast<double>(a.numel());
}

Tensor mean(const Tensor& a, std::int64_t dim, bool keepdim) {
  const Tensor total = apply_sum("mean", a, dim, keepdim);
  return total / static_cast<double>(a.dim(dim));
}

Tensor mean(const Tensor& a, const std::vector<std::int64_t>& dims, bool keepdim) {
  const Tensor total = sum_over("mean", a, dims, keepdim);
  double elements = 1;
  for (const auto dim : dims) elements *= static_cast<double>(a.dim(dim));
  return total / elements;
}

Tensor mean(const Tensor& a, std::initializer_list<std::int64_t> dims, bool keepdim) {
  return mean(a, std::vector(dims), keepdim);
}

}  // namespace moegrad::ops
