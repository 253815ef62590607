// SPDX-License-Identifier: Apache-2.0
// The methods of Tensor that need the tape, and the Function of its slices.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>

#include "framework/autograd/engine.h"
#include "framework/autograd/function.h"
#include "framework/autograd/slice.h"
#include "framework/tensor/fill.h"
#include "framework/tensor/tensor.h"
#include "framework/tensor/tensor_impl.h"

namespace moegrad {
namespace {

// dL/da is dL/dy at the elements of the slice and zero elsewhere.
class Slice final : public Function {
 public:
  Slice(std::string_view name, const SliceRange& range) : name_(name), range_(range) {}

  std::string_view name() const override { return name_; }
  bool takes_wide_gradients() const override { return true; }

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

Tensor Tensor::operator[](std::int64_t i) const {
  check<ShapeError>(ndim() >= 1, "operator[]: needs a dimension, got ", shape());
  const auto size = dim(0);
  check<ShapeError>(-size <= i && i < size, "operator[]: position must be in [", -size, ", ", size,
                    ") for dimension 0 of ", shape(), ", got ", i);
  return apply_slice("select", *this, {.begin = i < 0 ? i + size : i, .removes_dim = true});
}

Tensor Tensor::slice(std::int64_t dim, std::int64_t begin, std::int64_t end,
                     std::int64_t step) const {
  check<ShapeError>(ndim() >= 1, "slice: needs a dimension, got ", shape());
  check<ShapeError>(-ndim() <= dim && dim < ndim(), "slice: dimension must be in [", -ndim(), ", ",
                    ndim() - 1, "], got ", dim);
  check<ValueError>(step >= 1, "slice: step must be at least 1, got ", step);
  if (dim < 0) dim += ndim();
  const auto size = shape()[dim];
  const auto inside = [size](std::int64_t at) {
    return std::clamp<std::int64_t>(at < 0 ? at + size : at, 0, size);
  };
  const auto first = inside(begin), last = inside(end);
  return apply_slice("slice", *this,
                     {.dim = dim,
                      .begin = first,
                      .length = last > first ? (last - first - 1) / step + 1 : 0,
                      .step = step});
}

void Tensor::backward(const Tensor& grad, bool retain_graph) const {
  run_backward({*this}, {grad}, retain_graph);
}

HookHandle Tensor::register_hook(std::function<Tensor(const Tensor&)> hook) const {
  auto& impl = checked_impl(impl_);
  check(impl.requires_grad, "register_hook: the tensor does not require a gradient");
  check(impl.shard == nullptr || impl.detached,
        "register_hook: the tensor must not be a shard of a parameter, got ", impl.shape,
        ": fully_shard computes with the gathered whole, so the hook would never run; use "
        "register_post_accumulate_grad_hook");
  if (impl.grad_fn) return impl.grad_fn->add_output_hook(impl.output_index, std::move(hook));
  return impl.leaf_state().hooks.add(std::move(hook));
}

HookHandle Tensor::register_post_accumulate_grad_hook(
    std::function<void(const Tensor&)> hook) const {
  auto& impl = checked_impl(impl_);
  check(impl.requires_grad && !impl.grad_fn,
        "register_post_accumulate_grad_hook: needs a leaf that requires a gradient");
  return impl.leaf_state().post_accumulate_hooks.add(std::move(hook));
}

}  // namespace moegrad
