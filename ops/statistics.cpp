// SPDX-License-Identifier: Apache-2.0
// Shapes: [..., n, ...] with n at the dimension, [..., 1, ...] once it is reduced.
#include "ops/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "framework/autograd/function.h"
#include "framework/tensor/fill.h"
#include "ops/checks.h"
#include "ops/copies.h"
#include "ops/dims.h"
#include "ops/elementwise.h"
#include "ops/kernels/reduce.h"
#include "ops/masks.h"
#include "ops/order.h"
#include "ops/reduce.h"
#include "ops/views.h"

namespace moegrad::ops {
namespace {

// With c = a - mean and m = max(0, n - correction), y = sum c^2 / m:
//     var:  dL/da = dL/dy 2 c / m
//     std:  dL/da = dL/dy c / (m std)
// since the sum of c is 0.
class Variance final : public Function {
 public:
  Variance(std::string_view name, std::int64_t dim, double correction)
      : name_(name), dim_(dim), correction_(correction) {}

  std::string_view name() const override { return name_; }

  Tensor forward(const Tensor& a) {
    m_ = std::max(0.0, static_cast<double>(a.dim(dim_)) - correction_);
    const Tensor centred = minus_mean(a);
    const Tensor variance = sum(square(centred), dim_, /*keepdim=*/true) / m_;
    centred_ = centred;
    if (!is_std()) return variance;
    const Tensor deviation = sqrt(variance);
    std_ = deviation;
    return deviation;
  }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    const Tensor centred = centred_.unpack();
    if (!is_std()) return {mul(grads[0], centred) * 2.0 / m_};
    const Tensor deviation = std_.unpack();
    const Tensor slope = div(grads[0], deviation) / m_;
    return {mul(masked_fill(slope, eq(deviation, 0), 0), centred)};
  }

 private:
  // Differences from the first element are exact where elements are close to each other, and 0
  // where they are equal, so it does not matter by how much the mean is rounded.
  Tensor minus_mean(const Tensor& a) const {
    if (a.dim(dim_) == 0) return moegrad::clone(a);
    const Tensor shifted = sub(a, narrow(a, dim_, 0, 1));
    return sub(shifted, mean(shifted, dim_, /*keepdim=*/true));
  }

  bool is_std() const { return name_ == "std"; }

  std::string_view name_;
  std::int64_t dim_;
  double correction_;
  double m_ = 0;
  SavedTensor centred_{*this}, std_{*this};
};

// y = m + log sum exp(a - m), m = max a:  dL/da = dL/dy exp(a - y)
class LogSumExp final : public Function {
 public:
  explicit LogSumExp(std::int64_t dim) : dim_(dim) {}

  std::string_view name() const override { return "logsumexp"; }

  Tensor forward(const Tensor& a) {
    constexpr auto kInfinity = std::numeric_limits<double>::infinity();
    a_ = a;
    Shape shape = a.shape();
    shape[dim_] = 1;
    if (a.dim(dim_) == 0) {
      const Tensor nothing = Tensor::full(shape, -kInfinity, a.dtype());
      y_ = nothing;
      return nothing;
    }
    const Tensor largest = max(a, dim_, /*keepdim=*/true).values;
    const Tensor shift = masked_fill(largest, eq(abs(largest), kInfinity), 0);
    const Tensor y = shift + log(sum(exp(a - shift), dim_, /*keepdim=*/true));
    y_ = y;
    return y;
  }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    return {mul(grads[0], exp(a_.unpack() - y_.unpack()))};
  }

 private:
  std::int64_t dim_;
  SavedTensor a_{*this}, y_{*this};
};

// dL/da_i = sum over k >= i of dL/dy_k
class Cumsum final : public Function {
 public:
  explicit Cumsum(std::int64_t dim) : dim_(dim) {}

  std::string_view name() const override { return "cumsum"; }

  Tensor forward(const Tensor& a) const { return sums(a, /*reverse=*/false); }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    return {sums(contiguous(grads[0]), /*reverse=*/true)};
  }

 private:
  Tensor sums(const Tensor& x, bool reverse) const {
    Tensor y = empty_like(x);
    const auto extents = extents_at(x.shape(), dim_);
    dispatch_floating(x.dtype(), [&]<class T>() {
      kernels::cumsum<T>(x.data<T>().data(), reverse, y.mutable_data<T>().data(), extents.outer,
                         extents.n, extents.inner);
    });
    return y;
  }

  std::int64_t dim_;
};

std::int64_t checked_dim(std::string_view op, const Tensor& a, std::int64_t dim) {
  check_operands(op, a);
  dim = wrap_dim(op, dim, a.ndim());
  check_floating(op, a);
  return dim;
}

Tensor apply_variance(std::string_view op, const Tensor& a, std::int64_t dim, double correction,
                      bool keepdim) {
  dim = checked_dim(op, a, dim);
  check<ValueError>(std::isfinite(correction), op, ": correction must be finite, got ", correction);
  const Tensor y = apply<Variance>(made_with(op, dim, correction), contiguous(a));
  return keepdim ? y : squeeze(y, dim);
}

Tensor of_all(std::string_view op, const Tensor& a) {
  check_operands(op, a);
  check_floating(op, a);
  return apply_variance(op, reshape(a, {-1}), 0, 1, /*keepdim=*/false);
}

}  // namespace

Tensor var(const Tensor& a, std::int64_t dim, double correction, bool keepdim) {
  return apply_variance("var", a, dim, correction, keepdim);
}

Tensor std(const Tensor& a, std::int64_t dim, double correction, bool keepdim) {
  return apply_variance("std", a, dim, correction, keepdim);
}

Tensor var(const Tensor& a) { return of_all("var", a); }

Tensor std(const Tensor& a) { return of_all("std", a); }

Tensor logsumexp(const Tensor& a, std::int64_t dim, bool keepdim) {
  dim = checked_dim("logsumexp", a, dim);
  const Tensor y = apply<LogSumExp>(made_with(dim), contiguous(a));
  return keepdim ? y : squeeze(y, dim);
}

Tensor cumsum(const Tensor& a, std::int64_t dim) {
  dim = checked_dim("cumsum", a, dim);
  return apply<Cumsum>(made_with(dim), contiguous(a));
}

}  // namespace moegrad::ops
