// SPDX-License-Identifier: Apache-2.0
#include "ops/elementwise.h"

#include <algorithm>
#include <memory>
#include <string_view>

#include "framework/autograd/function.h"
#include "framework/runtime/parallel_for.h"
#include "framework/tensor/fill.h"
#include "ops/broadcast.h"
#include "ops/checks.h"
#include "ops/copies.h"
#include "ops/kernels/elementwise.h"

namespace moegrad::ops {
namespace {

using kernels::BinaryOp;
using kernels::UnaryOp;

constexpr std::string_view name_of(BinaryOp op) {
  switch (op) {
    case BinaryOp::kAdd:
      return "add";
    case BinaryOp::kSub:
      return "sub";
    case BinaryOp::kMul:
      return "mul";
    case BinaryOp::kDiv:
      return "div";
  }
  return "binary";
}

constexpr std::string_view name_of(UnaryOp op) {
  switch (op) {
    case UnaryOp::kExp:
      return "exp";
    case UnaryOp::kLog:
      return "log";
    case UnaryOp::kSqrt:
      return "sqrt";
    case UnaryOp::kRsqrt:
      return "rsqrt";
    case UnaryOp::kSquare:
      return "square";
    case UnaryOp::kSigmoid:
      return "sigmoid";
    case UnaryOp::kTanh:
      return "tanh";
    case UnaryOp::kSilu:
      return "silu";
    case UnaryOp::kRelu:
      return "relu";
  }
  return "unary";
}

// Two operands and their result as rows. Dimensions that all three walk with even steps are merged,
// so that the innermost dimension is as long as possible and its steps are 0 or 1.
struct Rows {
  Shape shape, a_strides, b_strides;

  Rows(const Tensor& a, const Tensor& b, const Shape& output) {
    const auto a_wide = broadcast_strides(a, output), b_wide = broadcast_strides(b, output);
    for (std::int64_t i = 0; i < output.ndim(); ++i) {
      if (output[i] == 1) continue;
      if (shape.ndim() > 0 && a_strides[-1] == a_wide[i] * output[i] &&
          b_strides[-1] == b_wide[i] * output[i]) {
        shape[-1] *= output[i];
        a_strides[-1] = a_wide[i];
        b_strides[-1] = b_wide[i];
      } else {
        shape.push_back(output[i]);
        a_strides.push_back(a_wide[i]);
        b_strides.push_back(b_wide[i]);
      }
    }
    if (shape.ndim() == 0) {
      shape = {1};
      a_strides = b_strides = {0};
    }
  }

  // The offset at which row `row` begins in an operand.
  std::int64_t offset(const Shape& strides, std::int64_t row) const {
    std::int64_t sum = 0;
    for (std::int64_t i = shape.ndim() - 2; i >= 0; --i) {
      sum += row % shape[i] * strides[i];
      row /= shape[i];
    }
    return sum;
  }
};

template <class T>
void broadcast_binary(BinaryOp op, const T* a, const T* b, T* y, const Rows& rows) {
  const auto width = rows.shape[-1], a_step = rows.a_strides[-1], b_step = rows.b_strides[-1];
  constexpr std::int64_t kGrain = 16384;
  parallel_for(rows.shape.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    while (begin < end) {
      const auto row = begin / width, column = begin % width;
      const auto n = std::min(end - begin, width - column);
      kernels::binary(op, a + rows.offset(rows.a_strides, row) + column * a_step, a_step,
                      b + rows.offset(rows.b_strides, row) + column * b_step, b_step, y + begin, n);
      begin += n;
    }
  });
}

// With g = dL/dy; each gradient is summed over the repeated dimensions:
//     a + b:  g, g        a - b:  g, -g        a * b:  g b, g a        a / b:  g / b, -(g / b)(a /
//     b)
class Binary final : public Function {
 public:
  explicit Binary(BinaryOp op) : op_(op) {}

  std::string_view name() const override { return name_of(op_); }

  Tensor forward(const Tensor& a, const Tensor& b, const Shape& shape) {
    a_shape_ = a.shape();
    b_shape_ = b.shape();
    if (op_ == BinaryOp::kMul || op_ == BinaryOp::kDiv) {
      a_ = a;
      b_ = b;
    }
    Tensor output = Tensor::empty(shape, a.dtype());
    const Rows rows(a, b, shape);
    dispatch_floating(a.dtype(), [&]<class T>() {
      broadcast_binary<T>(op_, a.data<T>().data(), b.data<T>().data(),
                          output.mutable_data<T>().data(), rows);
    });
    return output;
  }

  TensorList backward(const TensorList& grads, InputMask needs) override {
    const Tensor grad = contiguous(grads[0]);
    Tensor grad_a, grad_b;
    if (needs[0]) grad_a = sum_to_shape(wide_grad_a(grad), a_shape_);
    if (needs[1]) grad_b = sum_to_shape(wide_grad_b(grad), b_shape_);
    return {grad_a, grad_b};
  }

 private:
  Tensor wide_grad_a(const Tensor& grad) const {
    if (op_ == BinaryOp::kMul) return mul(grad, b_.unpack());
    if (op_ == BinaryOp::kDiv) return div(grad, b_.unpack());
    return grad;
  }

  Tensor wide_grad_b(const Tensor& grad) const {
    if (op_ == BinaryOp::kSub) return neg(grad);
    if (op_ == BinaryOp::kMul) return mul(grad, a_.unpack());
    if (op_ == BinaryOp::kAdd) return grad;
    const Tensor a = a_.unpack(), b = b_.unpack();
    return neg(mul(div(grad, b), div(a, b)));
  }

  BinaryOp op_;
  Shape a_shape_, b_shape_;
  SavedTensor a_{*this}, b_{*this};
};

// y = scale * a + shift, so dL/da = scale * dL/dy.
class Affine final : public Function {
 public:
  Affine(std::string_view name, double scale, double shift)
      : name_(name), scale_(scale), shift_(shift) {}

  std::string_view name() const override { return name_; }

  Tensor forward(const Tensor& a) const { return affine(a, shift_); }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    return {affine(contiguous(grads[0]), 0)};
  }

 private:
  Tensor affine(const Tensor& x, double shift) const {
    Tensor y = empty_like(x);
    dispatch_floating(x.dtype(), [&]<class T>() {
      kernels::affine<T>(x.data<T>().data(), static_cast<T>(scale_), static_cast<T>(shift),
                         y.mutable_data<T>().data(), x.numel());
    });
    return y;
  }

  std::string_view name_;
  double scale_;
  double shift_;
};

// dL/da = dL/dy * f'(a), written in terms of a or of y: kernels::unary_backward.
class Unary final : public Function {
 public:
  explicit Unary(UnaryOp op) : op_(op) {}

  std::string_view name() const override { return name_of(op_); }

  Tensor forward(const Tensor& a) {
    Tensor output = empty_like(a);
    dispatch_floating(a.dtype(), [&]<class T>() {
      kernels::unary<T>(op_, a.data<T>().data(), output.mutable_data<T>().data(), a.numel());
    });
    saved_ = kernels::saves_result(op_) ? output : a;
    return output;
  }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    const Tensor grad = contiguous(grads[0]), saved = saved_.unpack();
    Tensor grad_a = empty_like(saved);
    dispatch_floating(saved.dtype(), [&]<class T>() {
      kernels::unary_backward<T>(op_, grad.data<T>().data(), saved.data<T>().data(),
                                 grad_a.mutable_data<T>().data(), saved.numel());
    });
    return {grad_a};
  }

 private:
  UnaryOp op_;
  SavedTensor saved_{*this};
};

Tensor apply_binary(BinaryOp op, const Tensor& a, const Tensor& b) {
  check_operands(name_of(op), a, b);
  const auto shape = broadcast_shapes(name_of(op), a.shape(), b.shape());
  check_floating(name_of(op), a);
  check<DtypeError>(a.dtype() == b.dtype(), name_of(op), ": dtypes must agree, got ", a.dtype(),
                    " and ", b.dtype());
  return apply<Binary>(made_with(op), contiguous(a), contiguous(b), shape);
}

Tensor apply_affine(std::string_view op, const Tensor& a, double scale, double shift) {
  check_operands(op, a);
  check_floating(op, a);
  return apply<Affine>(made_with(op, scale, shift), contiguous(a));
}

Tensor apply_unary(UnaryOp op, const Tensor& a) {
  check_operands(name_of(op), a);
  check_floating(name_of(op), a);
  return apply<Unary>(made_with(op), contiguous(a));
}

}  // namespace

Tensor add(const Tensor& a, const Tensor& b) { return apply_binary(BinaryOp::kAdd, a, b); }
Tensor sub(const Tensor& a, const Tensor& b) { return apply_binary(BinaryOp::kSub, a, b); }
Tensor mul(const Tensor& a, const Tensor& b) { return apply_binary(BinaryOp::kMul, a, b); }
Tensor div(const Tensor& a, const Tensor& b) { return apply_binary(BinaryOp::kDiv, a, b); }
Tensor add(const Tensor& a, double b) { return apply_affine("add", a, 1, b); }
Tensor mul(const Tensor& a, double b) { return apply_affine("mul", a, b, 0); }

Tensor neg(const Tensor& a) { return apply_affine("neg", a, -1, 0); }
Tensor exp(const Tensor& a) { return apply_unary(UnaryOp::kExp, a); }
Tensor log(const Tensor& a) { return apply_unary(UnaryOp::kLog, a); }
Tensor sqrt(const Tensor& a) { return apply_unary(UnaryOp::kSqrt, a); }
Tensor rsqrt(const Tensor& a) { return apply_unary(UnaryOp::kRsqrt, a); }
Tensor square(const Tensor& a) { return apply_unary(UnaryOp::kSquare, a); }
Tensor sigmoid(const Tensor& a) { return apply_unary(UnaryOp::kSigmoid, a); }
Tensor tanh(const Tensor& a) { return apply_unary(UnaryOp::kTanh, a); }
Tensor silu(const Tensor& a) { return apply_unary(UnaryOp::kSilu, a); }
Tensor relu(const Tensor& a) { return apply_unary(UnaryOp::kRelu, a); }

}  // namespace moegrad::ops

namespace moegrad {

Tensor operator+(const Tensor& a, const Tensor& b) { return ops::add(a, b); }
Tensor operator-(const Tensor& a, const Tensor& b) { return ops::sub(a, b); }
Tensor operator*(const Tensor& a, const Tensor& b) { return ops::mul(a, b); }
Tensor operator/(const Tensor& a, const Tensor& b) { return ops::div(a, b); }
Tensor operator+(const Tensor& a, double b) { return ops::add(a, b); }
Tensor operator-(const Tensor& a, double b) { return ops::add(a, -b); }
Tensor operator*(const Tensor& a, double b) { return ops::mul(a, b); }
Tensor operator/(const Tensor& a, double b) {
  ops::check_operands("div", a);
  return ops::div(a, Tensor::full({}, b, a.dtype()));
}
Tensor operator+(double a, const Tensor& b) { return ops::add(b, a); }
Tensor operator-(double a, const Tensor& b) { return ops::add(ops::neg(b), a); }
Tensor operator*(double a, const Tensor& b) { return ops::mul(b, a); }
Tensor operator/(double a, const Tensor& b) {
  ops::check_operands("div", b);
  return ops::div(Tensor::full({}, a, b.dtype()), b);
}
Tensor operator-(const Tensor& a) { return ops::neg(a); }

}  // namespace moegrad
