// SPDX-License-Identifier: Apache-2.0
#include "ops/elementwise.h"

#include <functional>
#include <memory>
#include <string_view>
#include <type_traits>

#include "framework/autograd/function.h"
#include "framework/runtime/grad_mode.h"
#include "framework/tensor/dispatch_any.h"
#include "framework/tensor/fill.h"
#include "ops/checks.h"
#include "ops/copies.h"
#include "ops/kernels/elementwise.h"

namespace moegrad::ops {
namespace {

using kernels::UnaryOp;

constexpr std::string_view name_of(UnaryOp op) {
  switch (op) {
    case UnaryOp::kAbs:
      return "abs";
    case UnaryOp::kExp:
      return "exp";
    case UnaryOp::kLog:
      return "log";
    case UnaryOp::kLog1p:
      return "log1p";
    case UnaryOp::kSin:
      return "sin";
    case UnaryOp::kCos:
      return "cos";
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
    case UnaryOp::kGelu:
      return "gelu";
    case UnaryOp::kGeluTanh:
      return "gelu_tanh";
    case UnaryOp::kSoftplus:
      return "softplus";
  }
  return "unary";
}

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
    dispatch_reals(x.dtype(), [&]<class S>() {
      using T = ArithmeticOf<S>;
      kernels::affine(x.data<S>().data(), static_cast<T>(scale_), static_cast<T>(shift),
                      y.mutable_data<S>().data(), x.numel());
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
    dispatch_reals(a.dtype(), [&]<class S>() {
      kernels::unary(op_, a.data<S>().data(), output.mutable_data<S>().data(), a.numel());
    });
    saved_ = kernels::saves_result(op_) ? output : a;
    return output;
  }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    const Tensor grad = contiguous(grads[0]), saved = saved_.unpack();
    Tensor grad_a = empty_like(saved);
    dispatch_reals(saved.dtype(), [&]<class S>() {
      kernels::unary_backward(op_, grad.data<S>().data(), saved.data<S>().data(),
                              grad_a.mutable_data<S>().data(), saved.numel());
    });
    return {grad_a};
  }

 private:
  UnaryOp op_;
  SavedTensor saved_{*this};
};

// y = a moved into [least, most]: dL/da = dL/dy where a was in there.
class Clamp final : public Function {
 public:
  Clamp(double least, double most) : least_(least), most_(most) {}

  std::string_view name() const override { return "clamp"; }

  Tensor forward(const Tensor& a) {
    a_ = a;
    Tensor output = empty_like(a);
    dispatch_floating(a.dtype(), [&]<class T>() {
      kernels::clamp<T>(a.data<T>().data(), static_cast<T>(least_), static_cast<T>(most_),
                        output.mutable_data<T>().data(), a.numel());
    });
    return output;
  }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    const Tensor grad = contiguous(grads[0]), a = a_.unpack();
    Tensor grad_a = empty_like(a);
    dispatch_floating(a.dtype(), [&]<class T>() {
      kernels::clamp_backward<T>(grad.data<T>().data(), a.data<T>().data(), static_cast<T>(least_),
                                 static_cast<T>(most_), grad_a.mutable_data<T>().data(), a.numel());
    });
    return {grad_a};
  }

 private:
  double least_, most_;
  SavedTensor a_{*this};
};

Tensor apply_affine(std::string_view op, const Tensor& a, double scale, double shift) {
  check_operands(op, a);
  check_reals(op, a);
  return apply<Affine>(made_with(op, scale, shift), contiguous(a));
}

Tensor apply_unary(UnaryOp op, const Tensor& a) {
  check_operands(name_of(op), a);
  if (kernels::takes_bfloat16(op)) {
    check_reals(name_of(op), a);
  } else {
    check_floating(name_of(op), a);
  }
  return apply<Unary>(made_with(op), contiguous(a));
}

}  // namespace

Tensor add(const Tensor& a, double b) { return apply_affine("add", a, 1, b); }
Tensor mul(const Tensor& a, double b) { return apply_affine("mul", a, b, 0); }

Tensor clamp(const Tensor& a, double least, double most) {
  check_operands("clamp", a);
  check<ValueError>(least <= most, "clamp: the least must not be above the most, got ", least,
                    " and ", most);
  check_floating("clamp", a);
  return apply<Clamp>(made_with(least, most), contiguous(a));
}

Tensor abs(const Tensor& a) { return apply_unary(UnaryOp::kAbs, a); }
Tensor neg(const Tensor& a) {
  check_operands("neg", a);
  check_floating("neg", a);
  return apply_affine("neg", a, -1, 0);
}
Tensor exp(const Tensor& a) { return apply_unary(UnaryOp::kExp, a); }
Tensor log(const Tensor& a) { return apply_unary(UnaryOp::kLog, a); }
Tensor log1p(const Tensor& a) { return apply_unary(UnaryOp::kLog1p, a); }
Tensor sin(const Tensor& a) { return apply_unary(UnaryOp::kSin, a); }
Tensor cos(const Tensor& a) { return apply_unary(UnaryOp::kCos, a); }
Tensor sqrt(const Tensor& a) { return apply_unary(UnaryOp::kSqrt, a); }
Tensor rsqrt(const Tensor& a) { return apply_unary(UnaryOp::kRsqrt, a); }
Tensor square(const Tensor& a) { return apply_unary(UnaryOp::kSquare, a); }
Tensor sigmoid(const Tensor& a) { return apply_unary(UnaryOp::kSigmoid, a); }
Tensor tanh(const Tensor& a) { return apply_unary(UnaryOp::kTanh, a); }
Tensor silu(const Tensor& a) { return apply_unary(UnaryOp::kSilu, a); }
Tensor relu(const Tensor& a) { return apply_unary(UnaryOp::kRelu, a); }
Tensor gelu(const Tensor& a) { return apply_unary(UnaryOp::kGelu, a); }
Tensor gelu_tanh(const Tensor& a) { return apply_unary(UnaryOp::kGeluTanh, a); }
Tensor softplus(const Tensor& a) { return apply_unary(UnaryOp::kSoftplus, a); }

}  // namespace moegrad::ops

namespace moegrad {
namespace {

void check_unrecorded(std::string_view op, std::string_view side, const Tensor& operand) {
  check(!grad_enabled() || !operand.requires_grad(), "operator", op,
        "=: is not recorded on the tape, but the ", side, " side requires a gradient; write a = a ",
        op, " b, or use a NoGradGuard");
}

// Writes compute(a, b) into a.
template <class B, class Compute>
Tensor& update_in_place(std::string_view op, Tensor& a, const B& b, const Compute& compute) {
  Tensor result;
  {
    const NoGradGuard no_grad;
    result = compute(a, b);
  }
  check_unrecorded(op, "left", a);
  if constexpr (std::is_same_v<B, Tensor>) check_unrecorded(op, "right", b);
  check<ShapeError>(result.shape() == a.shape(), "operator", op,
                    "=: the result must have the shape of the left side, ", a.shape(), ", got ",
                    result.shape());
  copy_(a, result);
  return a;
}

}  // namespace

Tensor operator+(const Tensor& a, const Tensor& b) { return ops::add(a, b); }
Tensor operator-(const Tensor& a, const Tensor& b) { return ops::sub(a, b); }
Tensor operator*(const Tensor& a, const Tensor& b) { return ops::mul(a, b); }
Tensor operator/(const Tensor& a, const Tensor& b) { return ops::div(a, b); }
Tensor operator+(const Tensor& a, double b) { return ops::add(a, b); }
Tensor operator-(const Tensor& a, double b) { return ops::add(a, -b); }
Tensor operator*(const Tensor& a, double b) { return ops::mul(a, b); }
Tensor operator/(const Tensor& a, double b) {
  ops::check_operands("div", a);
  ops::check_floating("div", a);
  return ops::div(a, scalar(b, a.dtype()));
}
Tensor operator+(double a, const Tensor& b) { return ops::add(b, a); }
Tensor operator-(double a, const Tensor& b) { return ops::add(ops::neg(b), a); }
Tensor operator*(double a, const Tensor& b) { return ops::mul(b, a); }
Tensor operator/(double a, const Tensor& b) {
  ops::check_operands("div", b);
  ops::check_floating("div", b);
  return ops::div(scalar(a, b.dtype()), b);
}
Tensor operator-(const Tensor& a) { return ops::neg(a); }

Tensor& operator+=(Tensor& a, const Tensor& b) { return update_in_place("+", a, b, std::plus<>()); }
Tensor operator+=(Tensor&& a, const Tensor& b) { return a += b; }
Tensor& operator+=(Tensor& a, double b) { return update_in_place("+", a, b, std::plus<>()); }
Tensor operator+=(Tensor&& a, double b) { return a += b; }
Tensor& operator-=(Tensor& a, const Tensor& b) {
  return update_in_place("-", a, b, std::minus<>());
}
Tensor operator-=(Tensor&& a, const Tensor& b) { return a -= b; }
Tensor& operator-=(Tensor& a, double b) { return update_in_place("-", a, b, std::minus<>()); }
Tensor operator-=(Tensor&& a, double b) { return a -= b; }
Tensor& operator*=(Tensor& a, const Tensor& b) {
  return update_in_place("*", a, b, std::multiplies<>());
}
Tensor operator*=(Tensor&& a, const Tensor& b) { return a *= b; }
Tensor& operator*=(Tensor& a, double b) { return update_in_place("*", a, b, std::multiplies<>()); }
Tensor operator*=(Tensor&& a, double b) { return a *= b; }
Tensor& operator/=(Tensor& a, const Tensor& b) {
  return update_in_place("/", a, b, std::divides<>());
}
Tensor operator/=(Tensor&& a, const Tensor& b) { return a /= b; }
Tensor& operator/=(Tensor& a, double b) { return update_in_place("/", a, b, std::divides<>()); }
Tensor operator/=(Tensor&& a, double b) { return a /= b; }

}  // namespace moegrad
