// SPDX-License-Identifier: Apache-2.0
// Shapes: T tokens, N heads.
#include "ops/dropout.h"

#include <algorithm>
#include <string_view>

#include "framework/autograd/function.h"
#include "framework/tensor/fill.h"
#include "ops/checks.h"
#include "ops/copies.h"
#include "ops/kernels/dropout.h"
#include "ops/kernels/dropout_words.h"
#include "ops/row_ids.h"

namespace moegrad::ops {
namespace {

// dL/dx = keep dL/dy / (1 - p): the same function of another tensor.
class Dropout final : public Function {
 public:
  Dropout(double p, const Random& random) : p_(p), random_(random) {}

  std::string_view name() const override { return "dropout"; }

  Tensor forward(const Tensor& x, const Tensor& ids) {
    ids_ = ids;
    return drop(x, ids);
  }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    return {drop(contiguous(grads[0]), ids_.unpack()), Tensor()};
  }

 private:
  Tensor drop(const Tensor& x, const Tensor& ids) const {
    Tensor y = empty_like(x);
    const auto rows = x.dim(0);
    dispatch_floating(x.dtype(), [&]<class T>() {
      kernels::dropout<T>(x.data<T>().data(), ids.data<std::int64_t>().data(), random_, p_,
                          y.mutable_data<T>().data(), rows, rows == 0 ? 0 : x.numel() / rows);
    });
    return y;
  }

  double p_;
  Random random_;
  SavedTensor ids_{*this};
};

class AttentionDropout final : public Function {
 public:
  AttentionDropout(double p, std::uint64_t seed, std::string purpose)
      : p_(p), seed_(seed), purpose_(std::move(purpose)) {}

  std::string_view name() const override { return "attention_dropout"; }

  Tensor forward(const Tensor& weights, const Tensor& ids) {
    ids_ = ids;
    return drop(weights, ids);
  }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    return {drop(contiguous(grads[0]), ids_.unpack()), Tensor()};
  }

 private:
  Tensor drop(const Tensor& x, const Tensor& ids) const {
    Tensor y = empty_like(x);
    const auto n = x.dim(1);
    dispatch_floating(x.dtype(), [&]<class T>() {
      const T* const from = x.data<T>().data();
      T* const to = y.mutable_data<T>().data();
      for (std::int64_t head = 0; head < x.dim(0); ++head) {
        const auto random = kernels::dropout_of_head(seed_, purpose_, head);
        kernels::dropout_pairs<T>(from + head * n * n, ids.data<std::int64_t>().data(), random, p_,
                                  to + head * n * n, n);
      }
    });
    return y;
  }

  double p_;
  std::uint64_t seed_;
  std::string purpose_;
  SavedTensor ids_{*this};
};

void check_probability(std::string_view op, double p) {
  check<ValueError>(0 <= p && p < 1, op, ": p must be in [0, 1), got ", p);
}

}  // namespace

Tensor dropout(const Tensor& x, double p, const Random& random, const Tensor& ids) {
  check_operands("dropout", x);
  check<ShapeError>(x.ndim() >= 1, "dropout: x must be [T, ...], got ", x.shape());
  check_probability("dropout", p);
  check_floating("dropout", x);
  const Tensor rows = row_ids("dropout", ids, x.dim(0));
  if (p == 0) return x;
  return apply<Dropout>(made_with(p, random), contiguous(x), rows);
}

Tensor attention_dropout(const Tensor& weights, double p, std::uint64_t seed,
                         const std::string& purpose, const Tensor& ids) {
  check_operands("attention_dropout", weights);
  check<ShapeError>(weights.ndim() == 3 && weights.dim(1) == weights.dim(2),
                    "attention_dropout: weights must be [N, T, T], got ", weights.shape());
  check_probability("attention_dropout", p);
  check_floating("attention_dropout", weights);
  const Tensor tokens = row_ids("attention_dropout", ids, weights.dim(1), kernels::kDropoutIds);
  if (p == 0) return weights;
  return apply<AttentionDropout>(made_with(p, seed, purpose), contiguous(weights), tokens);
}

}  // namespace moegrad::ops
