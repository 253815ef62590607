// SPDX-License-Identifier: Apache-2.0
#include "ops/add_rms_norm.h"

#include <array>
#include <memory>
#include <optional>
#include <string_view>

#include "framework/autograd/function.h"
#include "framework/tensor/dispatch_any.h"
#include "ops/checks.h"
#include "ops/copies.h"
#include "ops/data_or_null.h"
#include "ops/kernels/rms_norm.h"
#include "ops/rms_norm.h"
#include "ops/rms_norm_gradients.h"

namespace moegrad::ops {
namespace {

// With s = sum, r = rstd, g = dL/dy and <.,.> a sum over D:
//     dL/dx = dL/dresidual = dL/ds + r * (g*w - s * r^2 * <g*w, s> / D)
//     dL/dw = sum over rows of g * s * r
class AddRMSNorm final : public Function {
 public:
  AddRMSNorm(double eps, Dtype dtype) : eps_(eps), dtype_(dtype) {}

  std::string_view name() const override { return "add_rms_norm"; }

  std::array<Tensor, 2> forward(const Tensor& x, const Tensor& residual, const Tensor& weight) {
    const auto d = x.dim(-1);
    const auto rows = x.numel() / d;
    // x + residual = residual + x: the kernel takes the bfloat16 one first.
    const bool swaps = residual.dtype() == Dtype::kBFloat16;
    const Tensor &branch = swaps ? residual : x, &stream = swaps ? x : residual;
    Tensor sum = Tensor::empty(x.shape(), weight.dtype());
    Tensor y = Tensor::empty(x.shape(), dtype_);
    Tensor rstd = Tensor::empty({rows}, weight.dtype());
    dispatch_reals(branch.dtype(), dtype_, [&]<class X, class Y>() {
      using T = ArithmeticOf<X>;
      kernels::add_rms_norm_forward(branch.data<X>().data(), stream.data<T>().data(),
                                    weight.data<T>().data(), sum.mutable_data<T>().data(),
                                    y.mutable_data<Y>().data(), rstd.mutable_data<T>().data(), rows,
                                    d, static_cast<T>(eps_));
    });
    sum_ = sum;
    weight_ = weight;
    rstd_ = rstd;
    return {sum, y};
  }

  // From the sum, which is the residual stream and kept anyway.
  std::optional<ShorterWay> shorter_way(std::size_t i, const TensorList& inputs,
                                        const TensorList& results) const override {
    if (i == 0) return std::nullopt;
    return ShorterWay{{results[0], inputs[2]},
                      [eps = eps_, dtype = dtype_](const TensorList& from) {
                        return TensorList{rms_norm(from[0], from[1], eps, 1, dtype)};
                      }};
  }

  TensorList backward(const TensorList& grads, InputMask needs) override {
    const Tensor grad_sum = contiguous(grads[0]), grad_y = contiguous(grads[1]);
    const Tensor sum = sum_.unpack(), weight = weight_.unpack(), rstd = rstd_.unpack();
    RMSNormGradients gradients(sum, 1, needs[0] || needs[1], needs[2]);
    dispatch_reals(sum.dtype(), dtype_, [&]<class X, class Y>() {
      using T = ArithmeticOf<X>;
      kernels::rms_norm_backward<T, Y, T>(
          grad_sum.data<T>().data(), grad_y.data<Y>().data(), sum.data<T>().data(),
          weight.data<T>().data(), rstd.data<T>().data(), mutable_data_or_null<T>(gradients.x),
          mutable_data_or_null<T>(gradients.partial), mutable_data_or_null<T>(gradients.weight),
          gradients.tokens, gradients.heads, sum.dim(-1));
    });
    // Returns one tensor twice, as operator+ does: the engine forms no sum in shared bytes, and
    // rounds that of a bfloat16 operand.
    return {gradients.x, gradients.x, gradients.weight};
  }

 private:
  double eps_;
  Dtype dtype_;
  SavedTensor sum_{*this};
  SavedTensor weight_{*this};
  SavedTensor rstd_{*this};
};

// The sum has the dtype of the weight, and so has each operand, or one of them is bfloat16.
void check_dtypes(const Tensor& x, const Tensor& residual, const Tensor& weight) {
  constexpr std::string_view kOp = "add_rms_norm";
  check_reals(kOp, "x", x);
  check<DtypeError>(x.dtype() != Dtype::kBFloat16 || residual.dtype() != Dtype::kBFloat16, kOp,
                    ": x or residual must be float32, got two of bfloat16",
                    cast_hint(Dtype::kBFloat16));
  const auto& stream = x.dtype() == Dtype::kBFloat16 ? residual : x;
  const auto& branch = x.dtype() == Dtype::kBFloat16 ? x : residual;
  check<DtypeError>(
      arithmetic_dtype(branch.dtype()) == stream.dtype() && weight.dtype() == stream.dtype(), kOp,
      ": x is ", x.dtype(), " but residual is ", residual.dtype(), " and weight ", weight.dtype(),
      cast_hint(branch.dtype(), weight.dtype()));
}

}  // namespace

AddRMSNormResult add_rms_norm(const Tensor& x, const Tensor& residual, const Tensor& weight,
                              double eps, std::optional<Dtype> dtype) {
  check_operands("add_rms_norm", x, residual, weight);
  check<ShapeError>(x.ndim() >= 1 && x.dim(-1) >= 1,
                    "add_rms_norm: x needs a last dimension of at least 1, got ", x.shape());
  check<ShapeError>(residual.shape() == x.shape(), "add_rms_norm: residual must be ", x.shape(),
                    " to match x, got ", residual.shape());
  check_rms_norm_weight("add_rms_norm", x, weight);
  check_norm_eps("add_rms_norm", eps);
  check_dtypes(x, residual, weight);
  const auto result = dtype.value_or(weight.dtype());
  check_norm_dtype("add_rms_norm", "the sum", weight.dtype(), result);
  const auto [sum, y] = apply<AddRMSNorm>(made_with(eps, result), contiguous(x),
                                          contiguous(residual), contiguous(weight));
  return {.sum = sum, .y = y};
}

}  // namespace moegrad::ops
