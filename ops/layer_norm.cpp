// SPDX-License-Identifier: Apache-2.0
#include "ops/layer_norm.h"

#include "framework/autograd/function.h"
#include "framework/tensor/fill.h"
#include "ops/broadcast.h"
#include "ops/checks.h"
#include "ops/copies.h"
#include "ops/data_or_null.h"
#include "ops/kernels/layer_norm.h"

namespace moegrad::ops {
namespace {

// dL/dx: kernels::layer_norm_backward. dL/dw sums dL/dy times the normed rows, dL/db sums dL/dy.
class LayerNorm final : public Function {
 public:
  explicit LayerNorm(double eps) : eps_(eps) {}

  std::string_view name() const override { return "layer_norm"; }

  Tensor forward(const Tensor& x, const Tensor& weight, const Tensor& bias) {
    const auto d = x.dim(-1), rows = x.numel() / d;
    Tensor y = empty_like(x);
    Tensor mean = Tensor::empty({rows, 2}, x.dtype()), rstd = Tensor::empty({rows}, x.dtype());
    dispatch_floating(x.dtype(), [&]<class T>() {
      kernels::layer_norm<T>(x.data<T>().data(), data_or_null<T>(weight), data_or_null<T>(bias),
                             y.mutable_data<T>().data(), mean.mutable_data<T>().data(),
                             rstd.mutable_data<T>().data(), rows, d, static_cast<T>(eps_));
    });
    x_ = x;
    weight_ = weight;
    mean_ = mean;
    rstd_ = rstd;
    return y;
  }

  TensorList backward(const TensorList& grads, InputMask needs) override {
    const Tensor grad = contiguous(grads[0]);
    const Tensor x = x_.unpack(), weight = weight_.unpack();
    const Tensor mean = mean_.unpack(), rstd = rstd_.unpack();
    const Shape row{x.dim(-1)};
    Tensor grad_x, scaled;
    if (needs[0]) grad_x = empty_like(x);
    if (needs[1]) scaled = empty_like(x);
    dispatch_floating(x.dtype(), [&]<class T>() {
      kernels::layer_norm_backward<T>(grad.data<T>().data(), x.data<T>().data(),
                                      data_or_null<T>(weight), mean.data<T>().data(),
                                      rstd.data<T>().data(), mutable_data_or_null<T>(grad_x),
                                      mutable_data_or_null<T>(scaled), rstd.numel(), x.dim(-1));
    });
    return {grad_x, needs[1] ? sum_to_shape(scaled, row) : Tensor(),
            needs[2] ? sum_to_shape(grad, row) : Tensor()};
  }

 private:
  double eps_;
  SavedTensor x_{*this}, weight_{*this}, mean_{*this}, rstd_{*this};
};

}  // namespace

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  check_operands("layer_norm", x);
  check<ShapeError>(x.ndim() >= 1 && x.dim(-1) >= 1,
                    "layer_norm: x needs a last dimension of at least 1, got ", x.shape());
  check_floating("layer_norm", "x", x);
  const auto checked = [&](std::string_view name, const Tensor& row) {
    if (!row.defined()) return Tensor();
    check_operands("layer_norm", row);
    check<ShapeError>(row.shape() == Shape{x.dim(-1)}, "layer_norm: ", name, " must be [",
                      x.dim(-1), "] to match x ", x.shape(), ", got ", row.shape());
    check_same_dtype("layer_norm", "x", x, name, row);
    return contiguous(row);
  };
  const Tensor scale = checked("weight", weight), shift = checked("bias", bias);
  check_norm_eps("layer_norm", eps);
  return apply<LayerNorm>(made_with(eps), contiguous(x), scale, shift);
}

}  // namespace moegrad::ops
