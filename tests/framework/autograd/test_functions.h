// SPDX-License-Identifier: Apache-2.0
#pragma once

// A few Functions, since the framework itself has no ops.

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "framework/autograd/function.h"
#include "framework/tensor/dispatch_any.h"
#include "framework/tensor/fill.h"
#include "tests/testing.h"

namespace moegrad::test {

/// Elements of bfloat16 are widened for `body`.
template <class Body>
Tensor zip(const Tensor& a, const Tensor& b, const Body& body) {
  Tensor out = empty_like(a);
  dispatch_reals(a.dtype(), [&]<class T>() {
    using Wide = std::conditional_t<std::is_same_v<T, BFloat16>, float, T>;
    const auto x = a.data<T>();
    const auto y = b.data<T>();
    const auto z = out.mutable_data<T>();
    for (std::size_t i = 0; i < z.size(); ++i) z[i] = T(body(Wide(x[i]), Wide(y[i])));
  });
  return out;
}

/// A float64 vector that requires a gradient.
inline Tensor leaf_of(const std::vector<double>& values) {
  Tensor tensor = Tensor::from(values, {static_cast<std::int64_t>(values.size())});
  return tensor.set_requires_grad(true);
}

/// A float64 copy of `tensor`, whose elements `edit` changes.
template <class Edit>
Tensor edited(const Tensor& tensor, const Edit& edit) {
  Tensor copy = clone(tensor);
  edit(copy.mutable_data<double>());
  return copy;
}

class Mul final : public Function {
 public:
  std::string_view name() const override { return "mul"; }
  Tensor forward(const Tensor& a, const Tensor& b) {
    a_ = a;
    b_ = b;
    return zip(a, b, std::multiplies<>());
  }
  TensorList backward(const TensorList& grads, InputMask needs) override {
    return {needs[0] ? zip(grads[0], b_.unpack(), std::multiplies<>()) : Tensor(),
            needs[1] ? zip(grads[0], a_.unpack(), std::multiplies<>()) : Tensor()};
  }

 private:
  SavedTensor a_{*this}, b_{*this};
};

/// x / (1 + |x|) with a gradient, (1 - |y|)^2, that it computes from its own result y.
class Softsign final : public Function {
 public:
  std::string_view name() const override { return "softsign"; }
  Tensor forward(const Tensor& x) {
    Tensor y = zip(x, x, [](auto a, auto b) { return a / (1 + std::abs(b)); });
    y_ = y;
    return y;
  }
  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    return {zip(grads[0], y_.unpack(),
                [](auto g, auto y) { return g * (1 - std::abs(y)) * (1 - std::abs(y)); })};
  }

 private:
  SavedTensor y_{*this};
};

class Add final : public Function {
 public:
  std::string_view name() const override { return "add"; }
  Tensor forward(const Tensor& a, const Tensor& b) { return zip(a, b, std::plus<>()); }
  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    return {grads[0], grads[0]};
  }
};

/// Cuts a vector [2n] into two [n]; the gradients are views of one buffer.
class Halves final : public Function {
 public:
  std::string_view name() const override { return "halves"; }
  TensorList forward(const Tensor& x) {
    const auto n = x.numel() / 2;
    return {clone(Tensor::as_strided(x, {n}, {1}, 0)), clone(Tensor::as_strided(x, {n}, {1}, n))};
  }
  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    const auto n = grads[0].numel();
    Tensor grad = Tensor::empty({2 * n}, grads[0].dtype());
    Tensor low = Tensor::as_strided(grad, {n}, {1}, 0);
    Tensor high = Tensor::as_strided(grad, {n}, {1}, n);
    copy_(low, grads[0]);
    copy_(high, grads[1]);
    return {grad};
  }
};

/// The identity, which calls `on_backward` with the gradient and may return another one.
class Probe final : public Function {
 public:
  using Callback = std::function<TensorList(const Tensor&)>;
  Probe(std::string name, Callback on_backward)
      : name_(std::move(name)), on_backward_(std::move(on_backward)) {}
  std::string_view name() const override { return name_; }
  Tensor forward(const Tensor& x) { return clone(x); }
  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    return on_backward_(grads[0]);
  }

 private:
  std::string name_;
  Callback on_backward_;
};

/// forward(x), with dL/dx = backward(dL/dy), for what saves nothing.
class Unary final : public Function {
 public:
  using Map = std::function<Tensor(const Tensor&)>;
  Unary(std::string name, Map forward, Map backward)
      : name_(std::move(name)), forward_(std::move(forward)), backward_(std::move(backward)) {}
  std::string_view name() const override { return name_; }
  Tensor forward(const Tensor& x) { return forward_(x); }
  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    return {backward_(grads[0])};
  }

 private:
  std::string name_;
  Map forward_, backward_;
};

inline Tensor mul(const Tensor& a, const Tensor& b) { return apply<Mul>(a, b); }
inline Tensor add(const Tensor& a, const Tensor& b) { return apply<Add>(a, b); }
inline TensorList halves(const Tensor& x) { return apply<Halves>(x); }
inline Tensor softsign(const Tensor& x) { return apply<Softsign>(x); }
inline Tensor probe(const Tensor& x, std::string name, Probe::Callback on_backward) {
  return apply<Probe>(made_with(std::move(name), std::move(on_backward)), x);
}
inline Tensor unary(const Tensor& x, std::string name, Unary::Map forward, Unary::Map backward) {
  return apply<Unary>(made_with(std::move(name), std::move(forward), std::move(backward)), x);
}

/// The second half of a vector [2n], as a view.
inline Tensor second_half(const Tensor& whole) {
  const auto n = whole.numel() / 2;
  return unary(
      whole, "second_half", [n](const Tensor& x) { return Tensor::as_strided(x, {n}, {1}, n); },
      [n](const Tensor& grad) {
        Tensor padded = Tensor::zeros({2 * n}, grad.dtype());
        Tensor place = Tensor::as_strided(padded, {n}, {1}, n);
        copy_(place, grad);
        return padded;
      });
}

/// The result, and the gradients of x and of two weights, of products that save each other's.
inline TensorList products_of_each_other(Dtype dtype) {
  const Tensor x = randn({17}, 1, dtype, true), w = randn({17}, 2, dtype, true),
               v = randn({17}, 3, dtype, true);
  Tensor h = mul(x, w);
  for (int i = 0; i < 3; ++i) h = add(mul(mul(h, v), h), mul(add(h, x), w));
  h.backward(randn({17}, 4, dtype));
  return {h, x.grad(), w.grad(), v.grad()};
}

}  // namespace moegrad::test
