// SPDX-License-Identifier: Apache-2.0
// The ops of two operands that repeat to one shape.
#include <memory>
#include <string_view>
#include <type_traits>

#include "framework/autograd/function.h"
#include "framework/tensor/dispatch_any.h"
#include "framework/tensor/fill.h"
#include "ops/broadcast.h"
#include "ops/broadcast_rows.h"
#include "ops/checks.h"
#include "ops/copies.h"
#include "ops/elementwise.h"
#include "ops/kernels/elementwise.h"
#include "ops/masks.h"

namespace moegrad::ops {
namespace {

using kernels::BinaryOp;

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
    case BinaryOp::kMaximum:
      return "maximum";
    case BinaryOp::kMinimum:
      return "minimum";
    default:
      return "pow";
  }
}

Tensor apply_binary(BinaryOp op, const Tensor& a, const Tensor& b);

// The operands and the gradient of an operand in terms of both. With g = dL/dy, each gradient is
// summed over the repeated dimensions:
//     a + b:          g, g
//     a - b:          g, -g
//     a * b:          g b, g a
//     a / b:          g / b, -(g / b)(a / b)
//     max(a, b):      g where a is larger, g / 2 where both are equal; the same for b; min likewise
//     pow(a, b):      g b a^(b - 1), g a^b log(a), of which 0 where b = 0, and where a = 0 <= b
class Binary final : public Function {
 public:
  explicit Binary(BinaryOp op) : op_(op) {}

  std::string_view name() const override { return name_of(op_); }

  Tensor forward(const Tensor& a, const Tensor& b, const Shape& shape) {
    a_shape_ = a.shape();
    b_shape_ = b.shape();
    if (op_ != BinaryOp::kAdd && op_ != BinaryOp::kSub) {
      a_ = a;
      b_ = b;
    }
    Tensor output = Tensor::empty(shape, a.dtype() == b.dtype() ? a.dtype() : Dtype::kFloat32);
    const BroadcastRows<2> rows({&a, &b}, shape);
    dispatch_reals(a.dtype(), b.dtype(), [&]<class A, class B>() {
      using Y = std::conditional_t<std::is_same_v<A, B>, A, float>;
      const auto* const p = a.data<A>().data();
      const auto* const q = b.data<B>().data();
      auto* const y = output.mutable_data<Y>().data();
      rows.for_each_run([&](std::int64_t begin, std::int64_t n, const auto& offsets) {
        kernels::binary(op_, p + offsets[0], rows.step(0), q + offsets[1], rows.step(1), y + begin,
                        n);
      });
    });
    return output;
  }

  TensorList backward(const TensorList& grads, InputMask needs) override {
    const Tensor grad = contiguous(grads[0]);
    // What is summed is not rounded before.
    const auto to_sum = [&](const Shape& shape) {
      return grad.shape() == shape ? grad : cast(grad, arithmetic_dtype(grad.dtype()));
    };
    Tensor grad_a, grad_b;
    if (needs[0]) grad_a = sum_to_shape(wide_grad_a(to_sum(a_shape_)), a_shape_);
    if (needs[1]) grad_b = sum_to_shape(wide_grad_b(to_sum(b_shape_)), b_shape_);
    return {grad_a, grad_b};
  }

 private:
  // 0 where `none`, also if grad is infinite there.
  static Tensor times(const Tensor& grad, BinaryOp op, const Tensor& a, const Tensor& b,
                      const Tensor& none) {
    return where(none, 0.0, mul(grad, apply_binary(op, a, b)));
  }

  static Tensor to_larger(const Tensor& grad, const Tensor& a, const Tensor& b) {
    return times(grad, BinaryOp::kShareOfMaximum, a, b, lt(a, b));
  }

  // They unpack only what they read: the other operand may have been freed.
  Tensor wide_grad_a(const Tensor& grad) const {
    switch (op_) {
      case BinaryOp::kAdd:
      case BinaryOp::kSub:
        return grad;
      case BinaryOp::kMul:
        return mul(grad, cast(b_.unpack(), grad.dtype()));
      case BinaryOp::kDiv:
        return div(grad, b_.unpack());
      case BinaryOp::kMaximum:
        return to_larger(grad, a_.unpack(), b_.unpack());
      case BinaryOp::kMinimum:
        return to_larger(grad, b_.unpack(), a_.unpack());
      default: {
        const Tensor a = a_.unpack(), b = b_.unpack();
        return times(grad, BinaryOp::kPowByBase, a, b, eq(b, 0));
      }
    }
  }

  Tensor wide_grad_b(const Tensor& grad) const {
    switch (op_) {
      case BinaryOp::kAdd:
        return grad;
      case BinaryOp::kSub:
        return neg(grad);
      case BinaryOp::kMul:
        return mul(grad, cast(a_.unpack(), grad.dtype()));
      case BinaryOp::kDiv: {
        const Tensor a = a_.unpack(), b = b_.unpack();
        return neg(mul(div(grad, b), div(a, b)));
      }
      case BinaryOp::kMaximum:
        return to_larger(grad, b_.unpack(), a_.unpack());
      case BinaryOp::kMinimum:
        return to_larger(grad, a_.unpack(), b_.unpack());
      default: {
        const Tensor a = a_.unpack(), b = b_.unpack();
        return times(grad, BinaryOp::kPowByExponent, a, b, logical_and(eq(a, 0), ge(b, 0)));
      }
    }
  }

  BinaryOp op_;
  Shape a_shape_, b_shape_;
  SavedTensor a_{*this}, b_{*this};
};

void check_dtypes(BinaryOp op, const Tensor& a, const Tensor& b) {
  const bool agree = op == BinaryOp::kAdd
                         ? arithmetic_dtype(a.dtype()) == arithmetic_dtype(b.dtype())
                         : a.dtype() == b.dtype();
  if (kernels::takes_bfloat16(op)) {
    check_reals(name_of(op), a);
  } else if (agree || a.dtype() != Dtype::kBFloat16) {
    check_floating(name_of(op), a);
  }
  check<DtypeError>(agree, name_of(op), ": dtypes must agree, got ", a.dtype(), " and ", b.dtype(),
                    cast_hint(a.dtype(), b.dtype()));
}

Tensor apply_binary(BinaryOp op, const Tensor& a, const Tensor& b) {
  check_operands(name_of(op), a, b);
  const auto shape = broadcast_shapes(name_of(op), a.shape(), b.shape());
  check_dtypes(op, a, b);
  return apply<Binary>(made_with(op), contiguous(a), contiguous(b), shape);
}

}  // namespace

Tensor add(const Tensor& a, const Tensor& b) { return apply_binary(BinaryOp::kAdd, a, b); }
Tensor sub(const Tensor& a, const Tensor& b) { return apply_binary(BinaryOp::kSub, a, b); }
Tensor mul(const Tensor& a, const Tensor& b) { return apply_binary(BinaryOp::kMul, a, b); }
Tensor div(const Tensor& a, const Tensor& b) { return apply_binary(BinaryOp::kDiv, a, b); }
Tensor maximum(const Tensor& a, const Tensor& b) { return apply_binary(BinaryOp::kMaximum, a, b); }
Tensor minimum(const Tensor& a, const Tensor& b) { return apply_binary(BinaryOp::kMinimum, a, b); }
Tensor maximum(const Tensor& a, double b) {
  check_operands("maximum", a);
  check_floating("maximum", a);
  return maximum(a, scalar(b, a.dtype()));
}
Tensor minimum(const Tensor& a, double b) {
  check_operands("minimum", a);
  check_floating("minimum", a);
  return minimum(a, scalar(b, a.dtype()));
}
Tensor pow(const Tensor& a, const Tensor& b) { return apply_binary(BinaryOp::kPow, a, b); }
Tensor pow(const Tensor& a, double b) {
  check_operands("pow", a);
  check_floating("pow", a);
  return pow(a, scalar(b, a.dtype()));
}
Tensor pow(double a, const Tensor& b) {
  check_operands("pow", b);
  check_floating("pow", b);
  return pow(scalar(a, b.dtype()), b);
}

}  // namespace moegrad::ops
