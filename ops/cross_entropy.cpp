// SPDX-License-Identifier: Apache-2.0
#include "ops/cross_entropy.h"

#include <algorithm>
#include <memory>
#include <string_view>

#include "framework/autograd/function.h"
#include "framework/tensor/fill.h"
#include "ops/checks.h"
#include "ops/copies.h"
#include "ops/kernels/cross_entropy.h"

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
    return Tensor::full({}, total / denominator_, logits.dtype());
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
  return apply<CrossEntropy>(made_with(options.ignore_index, denominator), contiguous(logits),
                             rows);
}

}  // namespace moegrad::ops
