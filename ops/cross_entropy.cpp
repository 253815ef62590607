// SPDX-License-Identifier: Apache-2.0
#include "ops/cross_entropy.h"

#include <algorithm>
#include <memory>
#include <string_view>

#include "framework/autograd/function.h"
#include "framework/tensor/fill.h"
#include "ops/checks.h"
#include "ops/copies.h"
#include "ops/elementwise.h"
#include "ops/kernels/cross_entropy.h"
#include "ops/losses.h"
#include "ops/masks.h"
#include "ops/reduce.h"
#include "ops/softmax.h"

namespace moegrad::ops {
namespace {

// With p = softmax(logits) = exp(logits - logsumexp), for valid rows
//     dL/dlogits[t, v] = dL/dloss / denominator * (p[t, v] - [v = targets[t]])
class CrossEntropy final : public Function {
 public:
  CrossEntropy(std::int64_t ignore_index, double denominator)
      : ignore_index_(ignore_index), denominator_(denominator) {}

  std::string_view name() const override { return "cross_entropy"; }

  Tensor forward(const Tensor& logits, const Tensor& targets) {
    Tensor nll = Tensor::empty({logits.dim(0)}, logits.dtype());
    Tensor logsumexp = empty_like(nll);
    double total = 0;
    dispatch_floating(logits.dtype(), [&]<class T>() {
      kernels::cross_entropy<T>(logits.data<T>().data(), targets.data<std::int64_t>().data(),
                                ignore_index_, nll.mutable_data<T>().data(),
                                logsumexp.mutable_data<T>().data(), logits.dim(0), logits.dim(1));
      for (const auto loss : nll.data<T>()) total += static_cast<double>(loss);
    });
    logits_ = logits;
    targets_ = targets;
    logsumexp_ = logsumexp;
    return scalar(total / denominator_, logits.dtype());
  }

  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    const Tensor logits = logits_.unpack(), targets = targets_.unpack();
    const Tensor logsumexp = logsumexp_.unpack();
    const double scale = grads[0].item() / denominator_;
    Tensor grad_logits = empty_like(logits);
    dispatch_floating(logits.dtype(), [&]<class T>() {
      kernels::cross_entropy_backward<T>(
          static_cast<T>(scale), logits.data<T>().data(), targets.data<std::int64_t>().data(),
          ignore_index_, logsumexp.data<T>().data(), grad_logits.mutable_data<T>().data(),
          logits.dim(0), logits.dim(1));
    });
    return {grad_logits, Tensor()};
  }

 private:
  std::int64_t ignore_index_;
  double denominator_;
  SavedTensor logits_{*this}, targets_{*this}, logsumexp_{*this};
};

// The loss with label smoothing or class weights, divided by `denominator`, or by the weights of
// the valid targets.
Tensor smoothed_cross_entropy(const Tensor& logits, const Tensor& targets,
                              const CrossEntropyOptions& options) {
  const double smoothing = options.label_smoothing;
  check<ValueError>(0 <= smoothing && smoothing <= 1,
                    "cross_entropy: label_smoothing must be in [0, 1], got ", smoothing);
  const auto& weights = options.class_weights;
  const auto classes = logits.dim(1);
  if (weights.defined()) {
    check_operands("cross_entropy", weights);
    check<ShapeError>(weights.shape() == Shape{classes}, "cross_entropy: class_weights must be [",
                      classes, "], got ", weights.shape());
    check_same_dtype("cross_entropy", "logits", logits, "class_weights", weights);
  }
  const Tensor log_p = log_softmax(logits);  // [T, V]
  const NllOptions nll{
      .class_weights = weights, .ignore_index = options.ignore_index, .reduction = Reduction::kSum};
  Tensor total = mul(nll_loss(log_p, targets, nll), 1 - smoothing);
  if (smoothing > 0) {  // else a probability of 0 would make it 0 * infinity
    const Tensor ignored = Tensor::from(std::vector{options.ignore_index}, {});
    const Tensor weighted =
        weights.defined() ? mul(log_p, moegrad::clone(weights.detach())) : log_p;
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

double cross_entropy_denominator(std::string_view op, const Tensor& targets, std::int64_t tokens,
                                 std::int64_t vocabulary, const CrossEntropyOptions& options) {
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
  const auto valid = std::max<std::int64_t>(1, count_targets(targets, options.ignore_index));
  const double denominator = options.denominator.value_or(static_cast<double>(valid));
  check<ValueError>(denominator > 0, op, ": denominator must be positive, got ", denominator);
  return denominator;
}

Tensor cross_entropy(const Tensor& logits, const Tensor& targets,
                     const CrossEntropyOptions& options) {
  check_operands("cross_entropy", logits, targets);
  check<ShapeError>(logits.ndim() == 2, "cross_entropy: logits must be [T, V], got ",
                    logits.shape());
  check_floating("cross_entropy", "logits", logits);
  const Tensor rows = contiguous(targets);
  const double denominator =
      cross_entropy_denominator("cross_entropy", rows, logits.dim(0), logits.dim(1), options);
  if (options.label_smoothing != 0 || options.class_weights.defined()) {
    return smoothed_cross_entropy(logits, rows, options);
  }
  return apply<CrossEntropy>(made_with(options.ignore_index, denominator), contiguous(logits),
                             rows);
}

}  // namespace moegrad::ops
