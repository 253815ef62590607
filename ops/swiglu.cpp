// SPDX-License-Identifier: Apache-2.0
#include "ops/swiglu.h"

#include <memory>
#include <string_view>

#include "framework/autograd/function.h"
#include "framework/tensor/fill.h"
#include "ops/kernels/swiglu.h"
#include "ops/shape_ops.h"

namespace moegrad::ops {
namespace {

// With a = gate, s = 1 / (1 + e^-a), g = dL/dy:
//     dL/da  = g * up * s * (1 + a * (1 - s))
//     dL/dup = g * a * s
class SwiGLU final : public Function {
 public:
  std::string_view name() const override { return "swiglu"; }

  Tensor forward(const Tensor& gate_up) {
    const auto rows = gate_up.dim(0), inner = gate_up.dim(1) / 2;
    Tensor y = Tensor::empty({rows, inner}, gate_up.dtype());  // [R, I]
    dispatch_floating(gate_up.dtype(), [&]<class T>() {
      kernels::swiglu<T>(gate_up.data<T>().data(), y.mutable_data<T>().data(), rows, inner);
    });
    gate_up_ = gate_up;
    return y;
  }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    const Tensor grad_y = contiguous(grads[0]), gate_up = gate_up_.unpack();
    Tensor grad_gate_up = empty_like(gate_up);  // [R, 2I]
    dispatch_floating(gate_up.dtype(), [&]<class T>() {
      kernels::swiglu_backward<T>(grad_y.data<T>().data(), gate_up.data<T>().data(),
                                  grad_gate_up.mutable_data<T>().data(), gate_up.dim(0),
                                  gate_up.dim(1) / 2);
    });
    return {grad_gate_up};
  }

 private:
  SavedTensor gate_up_{*this};
};

}  // namespace

Tensor swiglu(const Tensor& gate_up) {
  check<ShapeError>(gate_up.ndim() == 2 && gate_up.dim(1) % 2 == 0,
                    "swiglu: gate_up must be [R, 2I], got ", gate_up.shape());
  check<DtypeError>(is_floating(gate_up.dtype()),
                    "swiglu: gate_up must be float32 or float64, got ", gate_up.dtype());
  return Function::apply(std::make_shared<SwiGLU>(), contiguous(gate_up));
}

}  // namespace moegrad::ops
