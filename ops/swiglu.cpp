// SPDX-License-Identifier: Apache-2.0
#include "ops/swiglu.h"

#include <memory>
#include <string_view>

#include "framework/autograd/function.h"
#include "framework/tensor/dispatch_any.h"
#include "framework/tensor/fill.h"
#include "ops/checks.h"
#include "ops/copies.h"
#include "ops/data_or_null.h"
#include "ops/kernels/swiglu.h"

namespace moegrad::ops {
namespace {

// With a = gate, s = 1 / (1 + e^-a), w = weights, g = dL/dy and <.,.> a sum over I:
//     dL/da  = w * g * up * s * (1 + a * (1 - s))
//     dL/dup = w * g * a * s
//     dL/dw  = <g * a * s, up>
class SwiGLU final : public Function {
 public:
  std::string_view name() const override { return "swiglu"; }

  Tensor forward(const Tensor& gate_up, const Tensor& weights) {
    const auto rows = gate_up.dim(0), inner = gate_up.dim(1) / 2;
    Tensor y = Tensor::empty({rows, inner}, gate_up.dtype());  // [R, I]
    dispatch_reals(gate_up.dtype(), [&]<class S>() {
      kernels::swiglu(gate_up.data<S>().data(), data_or_null<ArithmeticOf<S>>(weights),
                      y.mutable_data<S>().data(), rows, inner);
    });
    gate_up_ = gate_up;
    weights_ = weights;
    return y;
  }

  TensorList backward(const TensorList& grads, InputMask needs) override {
    const Tensor grad_y = contiguous(grads[0]);
    const Tensor gate_up = gate_up_.unpack(), weights = weights_.unpack();
    Tensor grad_gate_up = empty_like(gate_up), grad_weights;  // [R, 2I], [R]
    if (needs[1]) grad_weights = empty_like(weights);
    dispatch_reals(gate_up.dtype(), [&]<class S>() {
      using T = ArithmeticOf<S>;
      kernels::swiglu_backward(grad_y.data<S>().data(), gate_up.data<S>().data(),
                               data_or_null<T>(weights), grad_gate_up.mutable_data<S>().data(),
                               mutable_data_or_null<T>(grad_weights), gate_up.dim(0),
                               gate_up.dim(1) / 2);
    });
    return {grad_gate_up, grad_weights};
  }

 private:
  SavedTensor gate_up_{*this}, weights_{*this};
};

}  // namespace

Tensor swiglu(const Tensor& gate_up, const Tensor& weights) {
  check_operands("swiglu", gate_up);
  check<ShapeError>(gate_up.ndim() == 2 && gate_up.dim(1) % 2 == 0,
                    "swiglu: gate_up must be [R, 2I], got ", gate_up.shape());
  check_reals("swiglu", "gate_up", gate_up);
  if (weights.defined()) {
    check<ShapeError>(weights.shape() == Shape{gate_up.dim(0)}, "swiglu: weights must be [",
                      gate_up.dim(0), "] to match gate_up ", gate_up.shape(), ", got ",
                      weights.shape());
    check_arithmetic_dtype("swiglu", "gate_up", gate_up, "weights", weights);
  }
  return apply<SwiGLU>(contiguous(gate_up), weights.defined() ? contiguous(weights) : Tensor());
}

}  // namespace moegrad::ops
