// SPDX-License-Identifier: Apache-2.0
#include "ops/add_rms_norm.h"

#include <array>
#include <memory>
#include <string_view>

#include "framework/autograd/function.h"
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
  explicit AddRMSNorm(double eps) : eps_(eps) {}

  std::string_view name() const override { return "add_rms_norm"; }

  std::array<Tensor, 2> forward(const Tensor& x, const Tensor& residual, const Tensor& weight) {
    const auto d = x.dim(-1);
    const auto rows = x.numel() / d;
    Tensor sum = Tensor::empty(x.shape(), x.dtype());
    Tensor y = Tensor::empty(x.shape(), x.dtype());
    Tensor rstd = Tensor::empty({rows}, x.dtype());
    dispatch_floating(x.dtype(), [&]<class T>() {
      kernels::add_rms_norm_forward<T>(x.data<T>().data(), residual.data<T>().data(),
                                       weight.data<T>().data(), sum.mutable_data<T>().data(),
                                       y.mutable_data<T>().data(), rstd.mutable_data<T>().data(),
                                       rows, d, static_cast<T>(eps_));
    });
    sum_ = sum;
    weight_ = weight;
    rstd_ = rstd;
    return {sum, y};
  }

  TensorList backward(const TensorList& grads, InputMask needs) override {
    const Tensor grad_sum = contiguous(grads[0]), grad_y = contiguous(grads[1]);
    const Tensor sum = sum_.unpack(), weight = weight_.unpack(), rstd = rstd_.unpack();
    RMSNormGradients gradients(sum, 1, needs[0] || needs[1], needs[2]);
    dispatch_floating(sum.dtype(), [&]<class T>() {
      kernels::rms_norm_backward<T>(
          grad_sum.data<T>().data(), grad_y.data<T>().data(), sum.data<T>().data(),
          weight.data<T>().data(), rstd.data<T>().data(), mutable_data_or_null<T>(gradients.x),
          mutable_data_or_null<T>(gradients.partial), mutable_data_or_null<T>(gradients.weight),
          gradients.tokens, gradients.heads, sum.dim(-1));
    });
    // Returns one tensor twice, as operator+ does: the engine forms no sum in shared bytes.
    return {gradients.x, gradients.x, gradients.weight};
  }

 private:
  double eps_;
  SavedTensor sum_{*this};
  SavedTensor weight_{*this};
  SavedTensor rstd_{*this};
};

}  // namespace

AddRMSNormResult add_rms_norm(const Tensor& x, const Tensor& residual, const Tensor& weight,
                              double eps) {
  check_operands("add_rms_norm", x, residual, weight);
  check<ShapeError>(x.ndim() >= 1 && x.dim(-1) >= 1,
                    "add_rms_norm: x needs a last dimension of at least 1, got ", x.shape());
  check<ShapeError>(residual.shape() == x.shape(), "add_rms_norm: residual must be ", x.shape(),
                    " to match x, got ", residual.shape());
  check_rms_norm_weight("add_rms_norm", x, weight);
  check_norm_eps("add_rms_norm", eps);
  check<DtypeError>(residual.dtype() == x.dtype() && weight.dtype() == x.dtype(),
                    "add_rms_norm: x is ", x.dtype(), " but residual is ", residual.dtype(),
                    " and weight ", weight.dtype());
  const auto [sum, y] =
      apply<AddRMSNorm>(made_with(eps), contiguous(x), contiguous(residual), contiguous(weight));
  return {.sum = sum, .y = y};
}

}  // namespace moegrad::ops
