// SPDX-License-Identifier: Apache-2.0
#include "ops/bias_activation.h"

#include <string_view>

#include "framework/autograd/function.h"
#include "framework/tensor/fill.h"
#include "ops/broadcast.h"
#include "ops/checks.h"
#include "ops/copies.h"
#include "ops/kernels/bias_activation.h"

namespace moegrad::ops {
namespace {

// y = f(x + b): the gradient of x is that of the sum, and the gradient of b its sum over all rows.
class BiasActivation final : public Function {
 public:
  enum class Kind : std::uint8_t { kGelu, kSwiGLU };

  explicit BiasActivation(Kind kind) : kind_(kind) {}

  std::string_view name() const override {
    return kind_ == Kind::kGelu ? "bias_gelu" : "bias_swiglu";
  }

  Tensor forward(const Tensor& x, const Tensor& bias) {
    x_ = x;
    bias_ = bias;
    Shape shape = x.shape();
    shape[-1] = outputs(x);
    Tensor y = Tensor::empty(shape, x.dtype());
    dispatch_floating(x.dtype(), [&]<class T>() {
      const auto kernel = kind_ == Kind::kGelu ? kernels::bias_gelu<T> : kernels::bias_swiglu<T>;
      kernel(x.data<T>().data(), bias.data<T>().data(), y.mutable_data<T>().data(), rows(x),
             outputs(x));
    });
    return y;
  }

  TensorList backward(const TensorList& grads, InputMask needs) override {
    const Tensor grad = contiguous(grads[0]), x = x_.unpack(), bias = bias_.unpack();
    Tensor grad_x = empty_like(x);
    dispatch_floating(x.dtype(), [&]<class T>() {
      const auto kernel =
          kind_ == Kind::kGelu ? kernels::bias_gelu_backward<T> : kernels::bias_swiglu_backward<T>;
      kernel(grad.data<T>().data(), x.data<T>().data(), bias.data<T>().data(),
             grad_x.mutable_data<T>().data(), rows(x), outputs(x));
    });
    return {grad_x, needs[1] ? sum_to_shape(grad_x, bias.shape()) : Tensor()};
  }

 private:
  std::int64_t outputs(const Tensor& x) const {
    return kind_ == Kind::kGelu ? x.dim(-1) : x.dim(-1) / 2;
  }
  static std::int64_t rows(const Tensor& x) { return x.dim(-1) == 0 ? 0 : x.numel() / x.dim(-1); }

  Kind kind_;
  SavedTensor x_{*this}, bias_{*this};
};

void check_bias(std::string_view op, std::string_view name, const Tensor& x, const Tensor& bias) {
  check<ShapeError>(bias.shape() == Shape{x.dim(-1)}, op, ": bias must be [", x.dim(-1),
                    "] to match ", name, " ", x.shape(), ", got ", bias.shape());
  check_floating(op, name, x);
  check_same_dtype(op, name, x, "bias", bias);
}

}  // namespace

Tensor bias_gelu(const Tensor& x, const Tensor& bias) {
  check_operands("bias_gelu", x, bias);
  check<ShapeError>(x.ndim() >= 1, "bias_gelu: x must be [..., D], got ", x.shape());
  check_bias("bias_gelu", "x", x, bias);
  return apply<BiasActivation>(made_with(BiasActivation::Kind::kGelu), contiguous(x),
                               contiguous(bias));
}

Tensor bias_swiglu(const Tensor& gate_up, const Tensor& bias) {
  check_operands("bias_swiglu", gate_up, bias);
  check<ShapeError>(gate_up.ndim() >= 1 && gate_up.dim(-1) % 2 == 0,
                    "bias_swiglu: gate_up must be [..., 2I], got ", gate_up.shape());
  check_bias("bias_swiglu", "gate_up", gate_up, bias);
  return apply<BiasActivation>(made_with(BiasActivation::Kind::kSwiGLU), contiguous(gate_up),
                               contiguous(bias));
}

}  // namespace moegrad::ops
