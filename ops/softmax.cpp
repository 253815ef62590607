// SPDX-License-Identifier: Apache-2.0
#include "ops/softmax.h"

#include <string_view>

#include "framework/autograd/function.h"
#include "framework/tensor/fill.h"
#include "ops/checks.h"
#include "ops/copies.h"
#include "ops/dims.h"
#include "ops/kernels/softmax.h"
#include "ops/views.h"

namespace moegrad::ops {
namespace {

Extents rows_of(const Tensor& x) { return extents_at(x.shape(), x.ndim() - 1); }

// With g = dL/dy, row by row
//     softmax:      dL/dx_i = y_i (g_i - <g, y>)
//     log_softmax:  dL/dx_i = g_i - exp(y_i) sum_j g_j
class Softmax final : public Function {
 public:
  explicit Softmax(bool log) : log_(log) {}

  std::string_view name() const override { return log_ ? "log_softmax" : "softmax"; }

  Tensor forward(const Tensor& a) {
    Tensor output = empty_like(a);
    const auto rows = rows_of(a);
    dispatch_floating(a.dtype(), [&]<class T>() {
      const auto kernel = log_ ? kernels::log_softmax<T> : kernels::softmax<T>;
      kernel(a.data<T>().data(), output.mutable_data<T>().data(), rows.outer, rows.n);
    });
    output_ = output;
    return output;
  }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    const Tensor grad = contiguous(grads[0]), output = output_.unpack();
    Tensor grad_a = empty_like(output);
    const auto rows = rows_of(output);
    dispatch_floating(output.dtype(), [&]<class T>() {
      const auto kernel = log_ ? kernels::log_softmax_backward<T> : kernels::softmax_backward<T>;
      kernel(grad.data<T>().data(), output.data<T>().data(), grad_a.mutable_data<T>().data(),
             rows.outer, rows.n);
    });
    return {grad_a};
  }

 private:
  bool log_;
  SavedTensor output_{*this};
};

Tensor apply_softmax(std::string_view op, const Tensor& a, std::int64_t dim, bool log) {
  check_operands(op, a);
  dim = wrap_dim(op, dim, a.ndim());
  check_floating(op, a);
  if (dim == a.ndim() - 1) return apply<Softmax>(made_with(log), contiguous(a));
  const Tensor rows = contiguous(transpose(a, dim, -1));
  return contiguous(transpose(apply<Softmax>(made_with(log), rows), dim, -1));
}

}  // namespace

Tensor softmax(const Tensor& a, std::int64_t dim) {
  return apply_softmax("softmax", a, dim, /*log=*/false);
}

Tensor log_softmax(const Tensor& a, std::int64_t dim) {
  return apply_softmax("log_softmax", a, dim, /*log=*/true);
}

}  // namespace moegrad::ops
