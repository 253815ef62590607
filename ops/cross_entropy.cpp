// SPDX-License-Identifier: Apache-2.0
#include "ops/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/autograd/function.h"
#include "framework/distributed/collectives.h"
#include "framework/tensor/fill.h"
#include "ops/checks.h"
#include "ops/copies.h"
#include "ops/cross_entropy_rows.h"
#include "ops/elementwise.h"
#include "ops/kernels/cross_entropy.h"
#include "ops/losses.h"
#include "ops/masks.h"
#include "ops/reduce.h"
#include "ops/softmax.h"

namespace moegrad::ops {
namespace {

// With p = softmax(logits) = exp(logits - lse), for valid rows
//     dL/dlogits[t, v] = dL/dloss / denominator * w[t] (
//         p[t, v] (1 + 2 c lse[t]) - (1 - e) [v = targets[t]] - e / V)
class CrossEntropy final : public Function {
 public:
  explicit CrossEntropy(CrossEntropyTerms terms) : terms_(std::move(terms)) {}

  std::string_view name() const override { return "cross_entropy"; }
  bool may_run_again() const override { return terms_.group == nullptr; }

  Tensor forward(const Tensor& logits, const Tensor& targets, const Tensor& weights) {
    Tensor losses = Tensor::empty({logits.dim(0)}, logits.dtype());
    Tensor logsumexp = empty_like(losses);
    double total = 0;
    dispatch_floating(logits.dtype(), [&]<class T>() {
      cross_entropy_rows<T>(logits, targets.data<std::int64_t>().data(), terms_,
                            terms_.of_tokens<T>(weights, 0), losses.mutable_data<T>().data(),
                            logsumexp.mutable_data<T>().data());
      for (const auto loss : losses.data<T>()) total += static_cast<double>(loss);
    });
    logits_ = logits;
    targets_ = targets;
    weights_ = weights;
    logsumexp_ = logsumexp;
    return scalar(total / terms_.denominator, logits.dtype());
  }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    const Tensor logits = logits_.unpack(), targets = targets_.unpack();
    const Tensor weights = weights_.unpack(), logsumexp = logsumexp_.unpack();
    const double scale = grads[0].item() / terms_.denominator;
    Tensor grad_logits = empty_like(logits);
    dispatch_floating(logits.dtype(), [&]<class T>() {
      kernels::cross_entropy_backward<T>(
          static_cast<T>(scale), logits.data<T>().data(), targets.data<std::int64_t>().data(),
          terms_.ignore_index, terms_.of_tokens<T>(weights, 0), logsumexp.data<T>().data(),
          grad_logits.mutable_data<T>().data(), logits.dim(0), logits.dim(1), terms_.first_class());
    });
    return {grad_logits, Tensor(), Tensor()};
  }

 private:
  CrossEntropyTerms terms_;
  SavedTensor logits_{*this}, targets_{*this}, weights_{*this}, logsumexp_{*this};
};

// The loss with class weights, divided by `denominator`, or by the weights of the valid targets.
Tensor class_weighted_cross_entropy(const Tensor& logits, const Tensor& targets,
                                    const CrossEntropyOptions& options) {
  const double smoothing = options.label_smoothing;
  const auto& weights = options.class_weights;
  const auto classes = logits.dim(1);
  check<ValueError>(
      !options.token_weights.defined() && options.z_loss_coef == 0 && options.vocabulary == nullptr,
      "cross_entropy: class_weights go with neither token_weights nor z_loss_coef nor vocabulary");
  check_operands("cross_entropy", weights);
  check<ShapeError>(weights.shape() == Shape{classes}, "cross_entropy: class_weights must be [",
                    classes, "], got ", weights.shape());
  check_same_dtype("cross_entropy", "logits", logits, "class_weights", weights);
  const Tensor log_p = log_softmax(logits);  // [T, V]
  const NllOptions nll{
      .class_weights = weights, .ignore_index = options.ignore_index, .reduction = Reduction::kSum};
  Tensor total = mul(nll_loss(log_p, targets, nll), 1 - smoothing);
  if (smoothing > 0) {  // else a probability of 0 would make it 0 * infinity
    const Tensor ignored = Tensor::from(std::vector{options.ignore_index}, {});
    const Tensor weighted = mul(log_p, moegrad::clone(weights.detach()));
    const Tensor of_all = masked_fill(neg(sum(weighted, 1)), eq(targets, ignored), 0);  // [T]
    total = add(total, mul(sum(of_all), smoothing / static_cast<double>(classes)));
  }
  if (options.denominator) return mul(total, 1 / *options.denominator);
  const Tensor ones = Tensor::full({targets.dim(0), classes}, -1, logits.dtype());
  const double counted = nll_loss(ones, targets, nll).item();  // the sum of the targets' weights
  return mul(total, counted == 0 ? 0 : 1 / counted);
}

}  // namespace

std::int64_t count_targets(const Tensor& targets, std::int64_t ignore_index) {
  check_operands("count_targets", targets);
  check<DtypeError>(targets.dtype() == Dtype::kInt64, "count_targets: targets must be int64, got ",
                    targets.dtype());
  const Tensor values = contiguous(targets);
  return values.numel() - std::ranges::count(values.data<std::int64_t>(), ignore_index);
}

template <class T>
void cross_entropy_rows(const Tensor& logits, const std::int64_t* targets,
                        const CrossEntropyTerms& terms, const kernels::TokenLoss<T>& kind, T* loss,
                        T* lse) {
  const auto n = logits.dim(0), v = logits.dim(1);
  const auto ignored = terms.ignore_index;
  const T* const x = logits.data<T>().data();
  auto* const group = terms.group.get();
  if (group == nullptr) {
    return kernels::cross_entropy<T>(x, targets, ignored, kind, loss, lse, n, v);
  }
  const auto rows = static_cast<std::size_t>(n);
  std::vector<T> largest(rows);
  kernels::cross_entropy_largest<T>(x, targets, ignored, largest.data(), n, v);
  all_reduce(*group, std::span(largest), ReduceOp::kMax);
  const bool of_all = kind.of_class != 0;
  std::vector<double> sums((of_all ? 3 : 2) * rows);  // of exp, the targets' logits, of all
  kernels::cross_entropy_sums<T>(x, targets, ignored, largest.data(), of_all, sums.data(), n, v,
                                 terms.first_class());
  all_reduce(*group, std::span(sums));
  kernels::cross_entropy_join<T>(largest.data(), sums.data(), targets, ignored, kind, loss, lse, n);
}

template void cross_entropy_rows(const Tensor&, const std::int64_t*, const CrossEntropyTerms&,
                                 const kernels::TokenLoss<float>&, float*, float*);
template void cross_entropy_rows(const Tensor&, const std::int64_t*, const CrossEntropyTerms&,
                                 const kernels::TokenLoss<double>&, double*, double*);

Tensor constant_weights(const CrossEntropyOptions& options) {
  const auto& weights = options.token_weights;
  return weights.defined() ? contiguous(weights.detach()) : Tensor();
}

namespace {

// What the valid targets count.
double sum_of_weights(const Tensor& targets, const CrossEntropyOptions& options) {
  const Tensor weights = constant_weights(options);
  if (!weights.defined()) {
    return static_cast<double>(count_targets(targets, options.ignore_index));
  }
  const auto ids = targets.data<std::int64_t>();
  double sum = 0;
  dispatch_floating(weights.dtype(), [&]<class T>() {
    const auto values = weights.data<T>();
    for (std::size_t t = 0; t < ids.size(); ++t) {
      if (ids[t] != options.ignore_index) sum += static_cast<double>(values[t]);
    }
  });
  return sum;
}

}  // namespace

CrossEntropyTerms cross_entropy_terms(std::string_view op, const Tensor& targets,
                                      std::int64_t tokens, std::int64_t classes, Dtype dtype,
                                      const CrossEntropyOptions& options) {
  const auto& group = options.vocabulary;
  const auto vocabulary = group == nullptr ? classes : classes * group->size();
  check<ShapeError>(targets.shape() == Shape{tokens}, op, ": targets must be [", tokens,
                    "], one per token, got ", targets.shape());
  check<DtypeError>(targets.dtype() == Dtype::kInt64, op, ": targets must be int64, got ",
                    targets.dtype());
  const auto values = targets.data<std::int64_t>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    check<ValueError>(
        values[i] == options.ignore_index || (0 <= values[i] && values[i] < vocabulary), op,
        ": target must be in [0, ", vocabulary, ") or ", options.ignore_index, ", got ", values[i],
        " at position ", i);
  }
  const double smoothing = options.label_smoothing;
  check<ValueError>(0 <= smoothing && smoothing <= 1, op,
                    ": label_smoothing must be in [0, 1], got ", smoothing);
  const double z_coef = options.z_loss_coef;
  check<ValueError>(0 <= z_coef && std::isfinite(z_coef), op,
                    ": z_loss_coef must be finite and >= 0, got ", z_coef);
  if (const auto& weights = options.token_weights; weights.defined()) {
    check_operands(op, weights);
    check<ShapeError>(weights.shape() == Shape{tokens}, op, ": token_weights must be [", tokens,
                      "], one per token, got ", weights.shape());
    check<DtypeError>(weights.dtype() == dtype, op, ": token_weights must be ", dtype,
                      " as the loss is, got ", weights.dtype());
  }
  double denominator = 1;
  if (options.denominator) {
    denominator = *options.denominator;
  } else if (const double sum = sum_of_weights(targets, options); sum != 0) {
    denominator = sum;
  }
  check<ValueError>(denominator > 0, op, ": denominator must be positive, got ", denominator);
  return {.ignore_index = options.ignore_index,
          .denominator = denominator,
          .label_smoothing = smoothing,
          .z_loss_coef = z_coef,
          .group = group,
          .classes = classes};
}

Tensor cross_entropy(const Tensor& logits, const Tensor& targets,
                     const CrossEntropyOptions& options) {
  check_operands("cross_entropy", logits, targets);
  check<ShapeError>(logits.ndim() == 2, "cross_entropy: logits must be [T, V], got ",
                    logits.shape());
  check_floating("cross_entropy", "logits", logits);
  const Tensor rows = contiguous(targets);
  auto terms = cross_entropy_terms("cross_entropy", rows, logits.dim(0), logits.dim(1),
                                   logits.dtype(), options);
  if (options.class_weights.defined()) return class_weighted_cross_entropy(logits, rows, options);
  return apply<CrossEntropy>(made_with(std::move(terms)), contiguous(logits), rows,
                             constant_weights(options));
}

}  // namespace moegrad::ops
