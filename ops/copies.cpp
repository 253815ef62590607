// SPDX-License-Identifier: Apache-2.0
#include "ops/copies.h"

#include <string_view>

#include "framework/autograd/function.h"
#include "framework/runtime/rank_context.h"
#include "framework/tensor/fill.h"
#include "ops/checks.h"

namespace moegrad::ops {
namespace {

// The values do not change: dL/da = dL/dy.
class Contiguous final : public Function {
 public:
  std::string_view name() const override { return "contiguous"; }
  bool takes_wide_gradients() const override { return true; }

  Tensor forward(const Tensor& a) {
    auto& counters = RankContext::current().counters();
    ++counters.materialized_transposes;
    counters.converted_bytes += a.numel() * size_of(a.dtype());
    return moegrad::clone(a);
  }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override { return {grads[0]}; }
};

// dL/da = dL/dy.
class Clone final : public Function {
 public:
  std::string_view name() const override { return "clone"; }
  bool takes_wide_gradients() const override { return true; }
  bool reads_nz(std::size_t /*i*/) const override { return true; }

  Tensor forward(const Tensor& a) { return moegrad::clone(a); }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override { return {grads[0]}; }
};

// dL/da = dL/dy in the dtype of a.
class Cast final : public Function {
 public:
  std::string_view name() const override { return "cast"; }
  bool takes_wide_gradients() const override { return true; }

  Tensor forward(const Tensor& a, Dtype dtype) {
    dtype_ = a.dtype();
    return to_dtype(a, dtype);
  }

  // In float32 for a bfloat16 input: the engine rounds the whole sum.
  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    const auto dtype = arithmetic_dtype(dtype_);
    return {grads[0].dtype() == dtype ? grads[0] : to_dtype(grads[0], dtype)};
  }

 private:
  Dtype dtype_ = Dtype::kFloat32;
};

}  // namespace

Tensor contiguous(const Tensor& a) {
  check_operands_of_any_dtype("contiguous", a);
  if (a.layout() == Layout::kNZ || a.is_contiguous()) return a;
  return apply<Contiguous>(a);
}

Tensor clone(const Tensor& a) {
  check_operands_of_any_dtype("clone", a);
  return apply<Clone>(a);
}

Tensor cast(const Tensor& a, Dtype dtype) {
  check_operands_of_any_dtype("cast", a);
  if (a.dtype() == dtype) return a;
  return apply<Cast>(a, dtype);
}

Tensor widened(const Tensor& a) {
  return a.dtype() == Dtype::kBFloat16 ? cast(a, Dtype::kFloat32) : a;
}

}  // namespace moegrad::ops
