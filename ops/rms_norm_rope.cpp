// SPDX-License-Identifier: Apache-2.0
// Shapes: T tokens, N heads, D head dimension.
#include "ops/rms_norm_rope.h"

#include <memory>
#include <string_view>

#include "framework/autograd/function.h"
#include "framework/tensor/dispatch_any.h"
#include "ops/checks.h"
#include "ops/copies.h"
#include "ops/data_or_null.h"
#include "ops/kernels/rms_norm_rope.h"
#include "ops/rms_norm.h"
#include "ops/rms_norm_gradients.h"

namespace moegrad::ops {
namespace {

// y = R n with a rotation R of n = rms_norm(x). So the gradients are those of rms_norm
// (rms_norm.cpp) with dL/dn = R^T dL/dy, the rotation by the opposite angle. dL/dn is never stored.
class RMSNormRope final : public Function {
 public:
  explicit RMSNormRope(double eps) : eps_(eps) {}

  std::string_view name() const override { return "rms_norm_rope"; }

  Tensor forward(const Tensor& x, const Tensor& weight, const Tensor& cos, const Tensor& sin) {
    Tensor y = Tensor::empty(x.shape(), x.dtype());
    Tensor rstd = Tensor::empty({x.dim(0) * x.dim(1)}, weight.dtype());
    dispatch_reals(x.dtype(), [&]<class S>() {
      using T = ArithmeticOf<S>;
      kernels::rms_norm_rope_forward(x.data<S>().data(), weight.data<T>().data(),
                                     cos.data<T>().data(), sin.data<T>().data(),
                                     y.mutable_data<S>().data(), rstd.mutable_data<T>().data(),
                                     x.dim(0), x.dim(1), x.dim(2), static_cast<T>(eps_));
    });
    x_ = x;
    weight_ = weight;
    cos_ = cos;
    sin_ = sin;
    rstd_ = rstd;
    return y;
  }

  TensorList backward(const TensorList& grads, InputMask needs) override {
    const Tensor grad_y = contiguous(grads[0]);
    const Tensor x = x_.unpack(), weight = weight_.unpack(), rstd = rstd_.unpack();
    const Tensor cos = cos_.unpack(), sin = sin_.unpack();
    RMSNormGradients gradients(x, x.dim(1), needs[0], needs[1]);
    dispatch_reals(x.dtype(), [&]<class S>() {
      using T = ArithmeticOf<S>;
      kernels::rms_norm_rope_backward(
          grad_y.data<S>().data(), x.data<S>().data(), weight.data<T>().data(),
          cos.data<T>().data(), sin.data<T>().data(), rstd.data<T>().data(),
          mutable_data_or_null<S>(gradients.x), mutable_data_or_null<T>(gradients.partial),
          mutable_data_or_null<T>(gradients.weight), x.dim(0), x.dim(1), x.dim(2));
    });
    return {gradients.x, gradients.weight, Tensor(), Tensor()};
  }

 private:
  double eps_;
  SavedTensor x_{*this};
  SavedTensor weight_{*this};
  SavedTensor cos_{*this};
  SavedTensor sin_{*this};
  SavedTensor rstd_{*this};
};

}  // namespace

Tensor rms_norm_rope(const Tensor& x, const Tensor& weight, const RopeTable& table, double eps) {
  check_operands("rms_norm_rope", x, weight, table.cos, table.sin);
  check<ShapeError>(x.ndim() == 3, "rms_norm_rope: x must be [T, N, D], got ", x.shape());
  check<ShapeError>(x.dim(2) >= 2 && x.dim(2) % 2 == 0,
                    "rms_norm_rope: the last dimension of x must be even and at least 2, got ",
                    x.shape());
  check_rms_norm_weight("rms_norm_rope", x, weight);
  check_norm_eps("rms_norm_rope", eps);
  check_reals("rms_norm_rope", "x", x);
  check_arithmetic_dtype("rms_norm_rope", "x", x, "weight", weight);
  check_rope_table("rms_norm_rope", x, table);
  // Positions are data: the table carries no gradient.
  return apply<RMSNormRope>(made_with(eps), contiguous(x), contiguous(weight),
                            contiguous(table.cos.detach()), contiguous(table.sin.detach()));
}

}  // namespace moegrad::ops
