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

Shape reduced(const Shape& shape, std::int64_t dim, bool keepdim) {
  Shape result;
  for (std::int64_t i = 0; i < shape.ndim(); ++i) {
    if (i != dim) {
      result.push_back(shape[i]);
    } else if (keepdim) {
      result.push_back(1);
    }
  }
  return result;
}

// y = sum of a over the middle of [outer, n, inner]: dL/da is dL/dy repeated there.
class Sum final : public Function {
 public:
  explicit Sum(const Extents& extents) : extents_(extents) {}

  std::string_view name() const override { return "sum"; }

  Tensor forward(const Tensor& a, const Shape& shape) {
    shape_ = a.shape();
    Tensor output = Tensor::empty(shape, a.dtype());
    dispatch_floating(a.dtype(), [&]<class T>() {
      kernels::sum<T>(a.data<T>().data(), output.mutable_data<T>().data(), extents_.outer,
                      extents_.n, extents_.inner);
    });
    return output;
  }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    const Tensor column = view(contiguous(grads[0]), {extents_.outer, 1, extents_.inner});
    return {view(clone(expand(column, {extents_.outer, extents_.n, extents_.inner})), shape_)};
  }

 private:
  Extents extents_;
  Shape shape_;
};

// dL/da is dL/dy at the position of the maximum, zero elsewhere.
class Max final : public Function {
 public:
  explicit Max(const Extents& extents) : extents_(extents) {}

  std::string_view name() const override { return "max"; }

  Tensor forward(const Tensor& a, const Shape& shape) {
    shape_ = a.shape();
    Tensor output = Tensor::empty(shape, a.dtype());
    Tensor where = Tensor::empty(shape, Dtype::kInt64);
    dispatch_floating(a.dtype(), [&]<class T>() {
      kernels::max<T>(a.data<T>().data(), output.mutable_data<T>().data(),
                      where.mutable_data<std::int64_t>().data(), extents_.outer, extents_.n,
                      extents_.inner);
    });
    where_ = where;
    return output;
  }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    const Tensor grad = contiguous(grads[0]), where = where_.unpack();
    Tensor grad_a = Tensor::empty(shape_, grad.dtype());
    dispatch_floating(grad.dtype(), [&]<class T>() {
      kernels::max_backward<T>(grad.data<T>().data(), where.data<std::int64_t>().data(),
                               grad_a.mutable_data<T>().data(), extents_.outer, extents_.n,
                               extents_.inner);
    });
    return {grad_a};
  }

 private:
  Extents extents_;
  Shape shape_;
  SavedTensor where_{*this};
};

Tensor apply_sum(std::string_view op, const Tensor& a) {
  check_operands(op, a);
  check_floating(op, a);
  return apply<Sum>(made_with(Extents{.n = a.numel()}), contiguous(a), Shape{});
}

Tensor apply_sum(std::string_view op, const Tensor& a, std::int64_t dim, bool keepdim) {
  check_operands(op, a);
  dim = wrap_dim(op, dim, a.ndim());
  check_floating(op, a);
  return apply<Sum>(made_with(extents_at(a.shape(), dim)), contiguous(a),
                    reduced(a.shape(), dim, keepdim));
}

}  // namespace

Tensor sum(const Tensor& a) { return apply_sum("sum", a); }

Tensor sum(const Tensor& a, std::int64_t dim, bool keepdim) {
  return apply_sum("sum", a, dim, keepdim);
}

Tensor mean(const Tensor& a) {
  const Tensor total = apply_sum("mean", a);
  return mul(total, 1.0 / static_cast<double>(a.numel()));
}

Tensor mean(const Tensor& a, std::int64_t dim, bool keepdim) {
  const Tensor total = apply_sum("mean", a, dim, keepdim);
  return mul(total, 1.0 / static_cast<double>(a.dim(dim)));
}

Tensor max(const Tensor& a, std::int64_t dim, bool keepdim) {
  check_operands("max", a);
  dim = wrap_dim("max", dim, a.ndim());
  check<ShapeError>(a.dim(dim) > 0, "max: dimension ", dim, " of ", a.shape(),
                    " must not be empty");
  check_floating("max", a);
  return apply<Max>(made_with(extents_at(a.shape(), dim)), contiguous(a),
                    reduced(a.shape(), dim, keepdim));
}

}  // namespace moegrad::ops
