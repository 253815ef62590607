// SPDX-License-Identifier: Apache-2.0
#include "ops/softmax.h"

#include <memory>
#include <string_view>

#include "framework/autograd/function.h"
#include "framework/tensor/fill.h"
#include "ops/checks.h"
#include "ops/copies.h"
#include "ops/dims.h"
#include "ops/kernels/softmax.h"

namespace moegrad::ops {
namespace {

Extents rows_of(const Tensor& x) { return extents_at(x.shape(), x.ndim() - 1); }

// With g = dL/dy, row by row:  dL/dx_i = y_i (g_i - <g, y>)
class Softmax final : public Function {
 public:
  std::string_view name() const override { return "softmax"; }

  Tensor forward(const Tensor& a) {
    Tensor output = empty_like(a);
    const auto [rows, d, one] = rows_of(a);
    dispatch_floating(a.dtype(), [&]<class T>() {
      kernels::softmax<T>(a.data<T>().data(), output.mutable_data<T>().data(), rows, d);
    });
    output_ = output;
    return output;
  }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    const Tensor grad = contiguous(grads[0]), output = output_.unpack();
    Tensor grad_a = empty_like(output);
    const auto [rows, d, one] = rows_of(output);
    dispatch_floating(output.dtype(), [&]<class T>() {
      kernels::softmax_backward<T>(grad.data<T>().data(), output.data<T>().data(),
                                   grad_a.mutable_data<T>().data(), rows, d);
    });
    return {grad_a};
  }

 private:
  SavedTensor output_{*this};
};

// With g = dL/dy, row by row:  dL/dx_i = g_i - exp(y_i) sum_j g_j
class LogSoftmax final : public Function {
 public:
  std::string_view name() const override { return "log_softmax"; }

  Tensor forward(const Tensor& a) {
    Tensor output = empty_like(a);
    const auto [rows, d, one] = rows_of(a);
    dispatch_floating(a.dtype(), [&]<class T>() {
      kernels::log_softmax<T>(a.data<T>().data(), output.mutable_data<T>().data(), rows, d);
    });
    output_ = output;
    return output;
  }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    const Tensor grad = contiguous(grads[0]), output = output_.unpack();
    Tensor grad_a = empty_like(output);
    const auto [rows, d, one] = rows_of(output);
    dispatch_floating(output.dtype(), [&]<class T>() {
      kernels::log_softmax_backward<T>(grad.data<T>().data(), output.data<T>().data(),
                                       grad_a.mutable_data<T>().data(), rows, d);
    });
    return {grad_a};
  }

 private:
  SavedTensor output_{*this};
};

void check_rows(std::string_view op, const Tensor& a) {
  check<ShapeError>(a.ndim() >= 1, op, ": needs a last dimension, got ", a.shape());
  check_floating(op, a);
}

}  // namespace

Tensor softmax(const Tensor& a) {
  check_operands("softmax", a);
  check_rows("softmax", a);
  return apply<Softmax>(contiguous(a));
}

Tensor log_softmax(const Tensor& a) {
  check_operands("log_softmax", a);
  check_rows("log_softmax", a);
  return apply<LogSoftmax>(contiguous(a));
}

}  // namespace moegrad::ops
