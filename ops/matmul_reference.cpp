// SPDX-License-Identifier: Apache-2.0
#include "ops/matmul_reference.h"

#include <memory>
#include <string_view>

#include "framework/autograd/function.h"
#include "framework/tensor/fill.h"
#include "ops/copies.h"
#include "ops/kernels/matmul_eigen.h"
#include "ops/matmul.h"

namespace moegrad::ops {
namespace {

// Elements from one matrix of an operand to the next: 0 when there is one for all.
std::int64_t matrix_step(const Tensor& x) { return x.ndim() == 3 ? x.dim(1) * x.dim(2) : 0; }

// With g = dL/dc:  dL/da = g b^T  and  dL/db = a^T g,  per b; an operand that is used for every b
// adds up over b in ascending order.
class MatmulReference final : public Function {
 public:
  std::string_view name() const override { return "matmul_reference"; }
  double flops() const override { return 2.0 * static_cast<double>(k_) * Function::flops(); }

  Tensor forward(const Tensor& a, const Tensor& b) {
    a_ = a;
    b_ = b;
    m_ = a.dim(-2);
    k_ = a.dim(-1);
    n_ = b.dim(-1);
    const bool batched = a.ndim() == 3 || b.ndim() == 3;
    batch_ = a.ndim() == 3 ? a.dim(0) : b.ndim() == 3 ? b.dim(0) : 1;
    Tensor output = Tensor::empty(batched ? Shape{batch_, m_, n_} : Shape{m_, n_}, a.dtype());
    dispatch_floating(a.dtype(), [&]<class T>() {
      const auto* p = a.data<T>().data();
      const auto* q = b.data<T>().data();
      auto* out = output.mutable_data<T>().data();
      for (std::int64_t i = 0; i < batch_; ++i) {
        kernels::matmul_eigen(p + i * matrix_step(a), false, q + i * matrix_step(b), false,
                              out + i * m_ * n_, false, m_, k_, n_);
      }
    });
    return output;
  }

  TensorList backward(const TensorList& grads, InputMask needs) override {
    const Tensor grad = contiguous(grads[0]), a = a_.unpack(), b = b_.unpack();
    Tensor grad_a = needs[0] ? zeros_like(a) : Tensor();
    Tensor grad_b = needs[1] ? zeros_like(b) : Tensor();
    dispatch_floating(grad.dtype(), [&]<class T>() {
      const auto* g = grad.data<T>().data();
      const auto* p = a.data<T>().data();
      const auto* q = b.data<T>().data();
      auto* dp = needs[0] ? grad_a.mutable_data<T>().data() : nullptr;
      auto* dq = needs[1] ? grad_b.mutable_data<T>().data() : nullptr;
      for (std::int64_t i = 0; i < batch_; ++i) {
        const auto at_a = i * matrix_step(a), at_b = i * matrix_step(b), at_c = i * m_ * n_;
        if (dp) {
          kernels::matmul_eigen(g + at_c, false, q + at_b, true, dp + at_a, true, m_, n_, k_);
        }
        if (dq) {
          kernels::matmul_eigen(p + at_a, true, g + at_c, false, dq + at_b, true, k_, m_, n_);
        }
      }
    });
    return {grad_a, grad_b};
  }

 private:
  std::int64_t batch_ = 1, m_ = 0, k_ = 0, n_ = 0;
  SavedTensor a_{*this}, b_{*this};
};

}  // namespace

Tensor matmul_reference(const Tensor& a, const Tensor& b) {
  check_matmul_operands("matmul_reference", a, b);
  return apply<MatmulReference>(contiguous(a), contiguous(b));
}

}  // namespace moegrad::ops
