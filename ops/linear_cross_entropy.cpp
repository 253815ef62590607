// SPDX-License-Identifier: Apache-2.0
#include "ops/linear_cross_entropy.h"

#include <algorithm>
#include <memory>
#include <string_view>
#include <type_traits>
#include <utility>

#include "framework/autograd/function.h"
#include "framework/tensor/fill.h"
#include "ops/checks.h"
#include "ops/copies.h"
#include "ops/grouped_products.h"
#include "ops/kernels/cross_entropy.h"

namespace moegrad::ops {
namespace {

// With z = x W^T, p = softmax(z) = exp(z - logsumexp) and g = dL/dloss / denominator, for valid
// rows
//     dL/dz[t, v] = g (p[t, v] - [v = targets[t]])
//     dL/dx = dL/dz W
//     dL/dW = (dL/dz)^T x,   a sum over each piece of the tokens, added in order
class LinearCrossEntropy final : public Function {
 public:
  LinearCrossEntropy(std::int64_t ignore_index, double denominator)
      : ignore_index_(ignore_index), denominator_(denominator) {}

  std::string_view name() const override { return "linear_cross_entropy"; }
  bool reads_nz(std::size_t i) const override { return i == 1; }
  double flops() const override {
    const auto& x = edges()[0].shape;
    return 2.0 * static_cast<double>(x[0] * x[1] * edges()[1].shape[0]);
  }

  Tensor forward(const Tensor& x, const Tensor& weight, const Tensor& targets) {
    x_ = x;
    weight_ = weight;
    targets_ = targets;
    const auto dtype = arithmetic_dtype(x.dtype());  // of the logits
    Tensor logsumexp = Tensor::empty({x.dim(0)}, dtype);
    Tensor nll = empty_like(logsumexp);
    double total = 0;
    for_pieces(x, weight, [&]<class T>(std::int64_t begin, const Tensor& /*rows*/, Tensor& logits) {
      kernels::cross_entropy<T>(
          logits.data<T>().data(), targets.data<std::int64_t>().data() + begin, ignore_index_,
          nll.mutable_data<T>().data() + begin, logsumexp.mutable_data<T>().data() + begin,
          logits.dim(0), logits.dim(1));
    });
    dispatch_floating(dtype, [&]<class T>() {
      for (const auto loss : nll.data<T>()) total += static_cast<double>(loss);
    });
    logsumexp_ = logsumexp;
    return scalar(total / denominator_, dtype);
  }

  TensorList backward(const TensorList& grads, InputMask needs) override {
    const Tensor x = x_.unpack(), weight = weight_.unpack(), targets = targets_.unpack();
    const Tensor logsumexp = logsumexp_.unpack();
    const double scale = grads[0].item() / denominator_;
    const auto by_rows = stored_matrices(weight, 1, false)[0];
    Tensor grad_x = needs[0] ? Tensor::empty(x.shape(), x.dtype()) : Tensor();
    Tensor grad_weight;
    if (needs[1]) {
      const auto dtype = arithmetic_dtype(weight.dtype());
      grad_weight = x.dim(0) == 0 ? Tensor::zeros(weight.shape(), dtype)
                                  : Tensor::empty(weight.shape(), dtype);
    }
    const bool bf16 = x.dtype() == Dtype::kBFloat16;
    Tensor rounded;
    if (bf16) rounded = Tensor::empty({most_rows(x), weight.dim(0)}, x.dtype());
    for_pieces(x, weight, [&]<class T>(std::int64_t begin, const Tensor& rows, Tensor& logits) {
      // In the place of the logits, unless it is bfloat16.
      Tensor grad_logits = bf16 ? rows_of(rounded, 0, logits.dim(0)) : logits;
      const auto into = [&]<class Out>(Out* to) {
        kernels::cross_entropy_backward<T>(static_cast<T>(scale), logits.data<T>().data(),
                                           targets.data<std::int64_t>().data() + begin,
                                           ignore_index_, logsumexp.data<T>().data() + begin, to,
                                           logits.dim(0), logits.dim(1));
      };
      if (bf16) {
        if constexpr (std::is_same_v<T, float>) into(grad_logits.mutable_data<BFloat16>().data());
      } else {
        into(grad_logits.mutable_data<T>().data());
      }
      if (needs[0]) {
        Tensor target = rows_of(grad_x, begin, logits.dim(0));
        multiply_rows(grad_logits, by_rows, target);
      }
      if (needs[1]) multiply_columns(grad_logits, rows, begin > 0, grad_weight);
    });
    return {grad_x, grad_weight, Tensor()};
  }

 private:
  static Tensor rows_of(const Tensor& tensor, std::int64_t begin, std::int64_t count) {
    const auto width = tensor.dim(1);
    return Tensor::as_strided(tensor, {count, width}, {width, 1}, tensor.offset() + begin * width);
  }

  static std::int64_t most_rows(const Tensor& x) {
    return std::min(x.dim(0), kLinearCrossEntropyRows);
  }

  // Calls body<T>(begin, x[begin : end], their logits), piece by piece.
  template <class Body>
  static void for_pieces(const Tensor& x, const Tensor& weight, const Body& body) {
    const auto tokens = x.dim(0), vocabulary = weight.dim(0);
    const auto by_columns = stored_matrices(weight, 1, true)[0];
    Tensor buffer = Tensor::empty({most_rows(x), vocabulary}, arithmetic_dtype(x.dtype()));
    for (std::int64_t begin = 0; begin < tokens; begin += kLinearCrossEntropyRows) {
      const auto count = std::min(kLinearCrossEntropyRows, tokens - begin);
      const Tensor rows = rows_of(x, begin, count);
      Tensor logits = rows_of(buffer, 0, count);
      multiply_rows(rows, by_columns, logits);
      dispatch_floating(logits.dtype(),
                        [&]<class T>() { body.template operator()<T>(begin, rows, logits); });
    }
  }

  std::int64_t ignore_index_;
  double denominator_;
  SavedTensor x_{*this}, weight_{*this}, targets_{*this}, logsumexp_{*this};
};

}  // namespace

Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                            const CrossEntropyOptions& options) {
  check_operands("linear_cross_entropy", x, weight, targets);
  check<ValueError>(options.label_smoothing == 0 && !options.class_weights.defined(),
                    "linear_cross_entropy: takes neither label_smoothing nor class_weights");
  check<ShapeError>(x.ndim() == 2, "linear_cross_entropy: x must be [T, H], got ", x.shape());
  check<ShapeError>(weight.ndim() == 2 && weight.dim(1) == x.dim(1),
                    "linear_cross_entropy: weight must be [V, ", x.dim(1), "] to match x ",
                    x.shape(), ", got ", weight.shape());
  check_blocks("linear_cross_entropy", weight, 1);
  check_reals("linear_cross_entropy", "x", x);
  check_same_dtype("linear_cross_entropy", "x", x, "weight", weight);
  const Tensor rows = contiguous(targets);
  const double denominator =
      cross_entropy_denominator("linear_cross_entropy", rows, x.dim(0), weight.dim(0), options);
  return apply<LinearCrossEntropy>(made_with(options.ignore_index, denominator), contiguous(x),
                                   contiguous(weight), rows);
}

}  // namespace moegrad::ops
