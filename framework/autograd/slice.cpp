// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/slice.h"

#include <algorithm>

#include "framework/autograd/function.h"
#include "framework/tensor/fill.h"

namespace moegrad {
namespace {

// dL/da is dL/dy at the elements of the slice and zero elsewhere.
class Slice final : public Function {
 public:
  Slice(std::string_view name, const SliceRange& range) : name_(name), range_(range) {}

  std::string_view name() const override { return name_; }

  Tensor forward(const Tensor& a) {
    const auto& [dim, begin, length, step, removes_dim] = range_;
    shape_ = a.shape();
    Shape shape, strides;
    for (std::int64_t i = 0; i < a.ndim(); ++i) {
      if (i == dim && removes_dim) continue;
      shape.push_back(i == dim ? length : a.dim(i));
      strides.push_back(i == dim && length > 1 ? a.strides()[i] * step : a.strides()[i]);
    }
    return Tensor::as_strided(a, shape, strides, a.offset() + begin * a.strides()[dim]);
  }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    const auto& [dim, begin, length, step, removes_dim] = range_;
    const Tensor grad = grads[0].is_contiguous() ? grads[0] : clone(grads[0]);
    Tensor grad_a = Tensor::zeros(shape_, grad.dtype());
    // The tensors as [outer, n or length, inner], with `inner` in bytes.
    std::int64_t outer = 1, inner = size_of(grad.dtype());
    for (std::int64_t i = 0; i < dim; ++i) outer *= shape_[i];
    for (auto i = dim + 1; i < shape_.ndim(); ++i) inner *= shape_[i];
    // Runs of bytes that follow each other in both.
    const auto runs = step == 1 ? 1 : length;
    const auto run = step == 1 ? length * inner : inner;
    const auto* from = grad.bytes().data();
    auto* to = grad_a.mutable_bytes().data() + begin * inner;
    for (std::int64_t o = 0; o < outer; ++o, to += shape_[dim] * inner) {
      for (std::int64_t i = 0; i < runs; ++i, from += run) {
        std::copy_n(from, run, to + i * step * inner);
      }
    }
    return {grad_a};
  }

 private:
  std::string_view name_;
  SliceRange range_;
  Shape shape_;
};

}  // namespace

Tensor apply_slice(std::string_view op, const Tensor& a, const SliceRange& range) {
  return apply<Slice>(made_with(op, range), a);
}

}  // namespace moegrad
