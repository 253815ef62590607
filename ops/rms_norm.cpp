// SPDX-License-Identifier: Apache-2.0
#include "ops/rms_norm.h"

#include <memory>
#include <string_view>

#include "framework/autograd/function.h"
#include "framework/tensor/dispatch_any.h"
#include "ops/checks.h"
#include "ops/copies.h"
#include "ops/data_or_null.h"
#include "ops/kernels/rms_norm.h"
#include "ops/rms_norm_gradients.h"

namespace moegrad::ops {
namespace {

// With r = rstd, g = dL/dy and <.,.> a sum over D:
//     dL/dx = r * (g*w - x * r^2 * <g*w, x> / D)
//     dL/dw = sum over rows of g * x * r
class RMSNorm final : public Function {
 public:
  RMSNorm(double eps, std::int64_t heads, Dtype dtype) : eps_(eps), heads_(heads), dtype_(dtype) {}

  std::string_view name() const override { return "rms_norm"; }

  Tensor forward(const Tensor& x, const Tensor& weight) {
    const auto d = x.dim(-1);
    const auto rows = x.numel() / d;
    Tensor y = Tensor::empty(x.shape(), dtype_);
    Tensor rstd = Tensor::empty({rows}, weight.dtype());
    dispatch_reals(x.dtype(), dtype_, [&]<class X, class Y>() {
      using T = ArithmeticOf<X>;
      kernels::rms_norm_forward(x.data<X>().data(), weight.data<T>().data(),
                                y.mutable_data<Y>().data(), rstd.mutable_data<T>().data(), rows, d,
                                static_cast<T>(eps_));
    });
    x_ = x;
    weight_ = weight;
    rstd_ = rstd;
    return y;
  }

  TensorList backward(const TensorList& grads, InputMask needs) override {
    const Tensor grad_y = contiguous(grads[0]);
    const Tensor x = x_.unpack(), weight = weight_.unpack(), rstd = rstd_.unpack();
    RMSNormGradients gradients(x, heads_, needs[0], needs[1]);
    dispatch_reals(x.dtype(), dtype_, [&]<class X, class Y>() {
      using T = ArithmeticOf<X>;
      kernels::rms_norm_backward<X, Y, T>(
          /*grad_sum=*/nullptr, grad_y.data<Y>().data(), x.data<X>().data(),
          weight.data<T>().data(), rstd.data<T>().data(), mutable_data_or_null<X>(gradients.x),
          mutable_data_or_null<T>(gradients.partial), mutable_data_or_null<T>(gradients.weight),
          gradients.tokens, gradients.heads, x.dim(-1));
    });
    return {gradients.x, gradients.weight};
  }

 private:
  double eps_;
  std::int64_t heads_;
  Dtype dtype_;
  SavedTensor x_{*this};
  SavedTensor weight_{*this};
  SavedTensor rstd_{*this};
};

}  // namespace

void check_rms_norm_weight(std::string_view op, const Tensor& x, const Tensor& weight) {
  check<ShapeError>(weight.shape() == Shape{x.dim(-1)}, op, ": weight must be [", x.dim(-1),
                    "] to match x ", x.shape(), ", got ", weight.shape());
}

void check_norm_dtype(std::string_view op, std::string_view name, Dtype rows, Dtype result) {
  const bool narrows = arithmetic_dtype(rows) == Dtype::kFloat32;
  check<DtypeError>(result == rows || (narrows && arithmetic_dtype(result) == Dtype::kFloat32), op,
                    ": dtype must be ", narrows ? "float32 or bfloat16" : to_string(rows), " for ",
                    name, " in ", rows, ", got ", result);
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps, std::int64_t heads,
                std::optional<Dtype> dtype) {
  check_operands("rms_norm", x, weight);
  check<ShapeError>(x.ndim() >= 1 && x.dim(-1) >= 1,
                    "rms_norm: x needs a last dimension of at least 1, got ", x.shape());
  check_rms_norm_weight("rms_norm", x, weight);
  check_norm_eps("rms_norm", eps);
  const auto rows = x.numel() / x.dim(-1);
  check<ValueError>(heads >= 1 && rows % heads == 0, "rms_norm: heads must divide the ", rows,
                    " rows of x ", x.shape(), ", got ", heads);
  check_reals("rms_norm", "x", x);
  check_arithmetic_dtype("rms_norm", "x", x, "weight", weight);
  const auto result = dtype.value_or(x.dtype());
  check_norm_dtype("rms_norm", "x", x.dtype(), result);
  return apply<RMSNorm>(made_with(eps, heads, result), contiguous(x), contiguous(weight));
}

}  // namespace moegrad::ops
