// SPDX-License-Identifier: Apache-2.0
#include "ops/rms_norm.h"

#include <memory>
#include <string_view>

#include "framework/autograd/function.h"
#include "ops/kernels/rms_norm.h"
#include "ops/shape_ops.h"

namespace moegrad::ops {
namespace {

// With r = rstd, g = dL/dy and <.,.> a sum over D:
//     dL/dx = r * (g*w - x * r^2 * <g*w, x> / D)
//     dL/dw = sum over rows of g * x * r
class RMSNorm final : public Function {
 public:
  explicit RMSNorm(double eps) : eps_(eps) {}

  std::string_view name() const override { return "rms_norm"; }

  Tensor forward(const Tensor& x, const Tensor& weight) {
    const auto d = x.dim(-1);
    const auto rows = x.numel() / d;
    Tensor y = Tensor::empty(x.shape(), x.dtype());
    Tensor rstd = Tensor::empty({rows}, x.dtype());
    dispatch_floating(x.dtype(), [&]<class T>() {
      kernels::rms_norm_forward<T>(x.data<T>().data(), weight.data<T>().data(),
                                   y.mutable_data<T>().data(), rstd.mutable_data<T>().data(), rows,
                                   d, static_cast<T>(eps_));
    });
    x_ = x;
    weight_ = weight;
    rstd_ = rstd;
    return y;
  }

  TensorList backward(const TensorList& grads, InputMask needs) override {
    const Tensor grad_y = contiguous(grads[0]);
    const Tensor x = x_.unpack(), weight = weight_.unpack(), rstd = rstd_.unpack();
    const auto d = x.dim(-1);
    const auto rows = x.numel() / d;
    Tensor grad_x, grad_weight;
    dispatch_floating(x.dtype(), [&]<class T>() {
      const T* const grad_y_data = grad_y.data<T>().data();
      const T* const x_data = x.data<T>().data();
      const T* const rstd_data = rstd.data<T>().data();
      if (needs[0]) {
        grad_x = Tensor::empty(x.shape(), x.dtype());
        kernels::rms_norm_grad_x<T>(grad_y_data, x_data, weight.data<T>().data(), rstd_data,
                                    grad_x.mutable_data<T>().data(), rows, d);
      }
      if (needs[1]) {
        grad_weight = Tensor::empty(weight.shape(), x.dtype());
        Tensor partial = Tensor::empty({kernels::rms_norm_pieces(rows), d}, x.dtype());
        kernels::rms_norm_grad_weight<T>(grad_y_data, x_data, rstd_data,
                                         partial.mutable_data<T>().data(),
                                         grad_weight.mutable_data<T>().data(), rows, d);
      }
    });
    return {grad_x, grad_weight};
  }

 private:
  double eps_;
  SavedTensor x_{*this};
  SavedTensor weight_{*this};
  SavedTensor rstd_{*this};
};

}  // namespace

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  check<ShapeError>(x.ndim() >= 1 && x.dim(-1) >= 1,
                    "rms_norm: x needs a last dimension of at least 1, got ", x.shape());
  check<ShapeError>(weight.shape() == Shape{x.dim(-1)}, "rms_norm: weight must be [", x.dim(-1),
                    "] to match x ", x.shape(), ", got ", weight.shape());
  check<DtypeError>(weight.dtype() == x.dtype(), "rms_norm: x is ", x.dtype(), " but weight is ",
                    weight.dtype());
  return Function::apply(std::make_shared<RMSNorm>(eps), contiguous(x), contiguous(weight));
}

}  // namespace moegrad::ops
