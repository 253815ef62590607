// SPDX-License-Identifier: Apache-2.0
#include "ops/linear_cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>

#include "framework/autograd/function.h"
#include "framework/runtime/grad_mode.h"
#include "framework/tensor/fill.h"
#include "ops/checks.h"
#include "ops/collective_function.h"
#include "ops/copies.h"
#include "ops/cross_entropy_rows.h"
#include "ops/elementwise.h"
#include "ops/grouped_products.h"
#include "ops/kernels/cross_entropy.h"

namespace moegrad::ops {
namespace {

std::int64_t most_rows(const Tensor& x) { return std::min(x.dim(0), kLinearCrossEntropyRows); }

Tensor rows_of(const Tensor& tensor, std::int64_t begin, std::int64_t count) {
  const auto width = tensor.dim(1);
  return Tensor::as_strided(tensor, {count, width}, {width, 1}, tensor.offset() + begin * width);
}

// With z = x W^T, p = softmax(z) = exp(z - logsumexp) and g = dL/dloss / denominator, for valid
// rows and what cross_entropy has besides left out
//     dL/dz[t, v] = g (p[t, v] - [v = targets[t]])
//     dL/dx = dL/dz W
//     dL/dW = (dL/dz)^T x,   a sum over each piece of the tokens, added in order
class Gradients {
 public:
  Gradients(const CrossEntropyTerms& terms, const Tensor& x, const Tensor& weight, double grad_loss,
            InputMask needs)
      : terms_(terms), scale_(grad_loss / terms.denominator), dtype_(x.dtype()) {
    by_rows_ = stored_matrices(weight, 1, false)[0];
    const auto wide = arithmetic_dtype(dtype_);
    if (needs[0]) x_ = Tensor::empty(x.shape(), terms.group == nullptr ? dtype_ : wide);
    if (needs[1]) {
      weight_ =
          x.dim(0) == 0 ? Tensor::zeros(weight.shape(), wide) : Tensor::empty(weight.shape(), wide);
    }
    if (wide != dtype_) rounded_ = Tensor::empty({most_rows(x), weight.dim(0)}, dtype_);
  }

  // The next piece: x[begin : end], its logits, which the gradient replaces, and its targets.
  template <class T>
  void add(std::int64_t begin, const Tensor& rows, Tensor& logits, const std::int64_t* targets,
           const kernels::TokenLoss<T>& kind, const T* logsumexp) {
    const auto n = logits.dim(0), v = logits.dim(1);
    Tensor grad_logits = rounded_.defined() ? rows_of(rounded_, 0, n) : logits;
    const auto into = [&]<class Out>(Out* to) {
      kernels::cross_entropy_backward<T>(static_cast<T>(scale_), logits.data<T>().data(), targets,
                                         terms_.ignore_index, kind, logsumexp, to, n, v,
                                         terms_.first_class());
    };
    if (rounded_.defined()) {
      if constexpr (std::is_same_v<T, float>) into(grad_logits.mutable_data<BFloat16>().data());
    } else {
      into(grad_logits.mutable_data<T>().data());
    }
    if (x_.defined()) {
      Tensor target = rows_of(x_, begin, n);
      multiply_rows(grad_logits, by_rows_, target);
    }
    if (weight_.defined()) multiply_columns(grad_logits, rows, begin > 0, weight_);
  }

  // After the last piece: of x and the weight, undefined where they are not needed.
  TensorList take(bool divided) {
    if (x_.defined() && terms_.group != nullptr) {
      const auto conjugate = for_backward({});
      x_ = divided ? scatter_sum(*terms_.group, x_, conjugate)
                   : sum_in_place(*terms_.group, x_, conjugate);
      x_ = cast(x_, dtype_);
    }
    return {std::move(x_), std::move(weight_)};
  }

 private:
  const CrossEntropyTerms& terms_;
  double scale_;
  Dtype dtype_;
  StoredMatrix by_rows_;
  Tensor x_, weight_;
  Tensor rounded_;  // of bfloat16: the gradient of a piece's logits
};

// What is known before forward, so that the gradients are made there.
struct KnownGradient {
  double grad_loss = 0;
  InputMask needs;
};

class LinearCrossEntropy final : public Function {
 public:
  LinearCrossEntropy(CrossEntropyTerms terms, bool divided, std::optional<KnownGradient> known)
      : terms_(std::move(terms)), divided_(divided), known_(known) {}

  std::string_view name() const override { return "linear_cross_entropy"; }
  bool may_run_again() const override { return terms_.group == nullptr; }
  bool reads_nz(std::size_t i) const override { return i == 1; }
  double flops() const override {
    const auto& weight = edges()[1].shape;
    return 2.0 * static_cast<double>(edges()[2].shape[0] * weight[0] * weight[1]);
  }

  Tensor forward(const Tensor& own_x, const Tensor& weight, const Tensor& targets,
                 const Tensor& token_weights) {
    const Tensor x = gathered(own_x, {});
    const auto dtype = arithmetic_dtype(x.dtype());  // of the logits
    std::optional<Gradients> gradients;
    if (known_) gradients.emplace(terms_, x, weight, known_->grad_loss, known_->needs);
    Tensor losses = Tensor::empty({most_rows(x)}, dtype);  // of a piece
    Tensor logsumexp = known_ ? empty_like(losses) : Tensor::empty({x.dim(0)}, dtype);
    double total = 0;
    for_pieces(x, weight, [&]<class T>(std::int64_t begin, const Tensor& rows, Tensor& logits) {
      const auto* const of_rows = targets.data<std::int64_t>().data() + begin;
      const auto kind = terms_.of_tokens<T>(token_weights, begin);
      T* const lse = logsumexp.mutable_data<T>().data() + (known_ ? 0 : begin);
      cross_entropy_rows<T>(logits, of_rows, terms_, kind, losses.mutable_data<T>().data(), lse);
      const auto count = static_cast<std::size_t>(logits.dim(0));
      for (const auto loss : losses.data<T>().first(count)) total += static_cast<double>(loss);
      if (gradients) gradients->add<T>(begin, rows, logits, of_rows, kind, lse);
    });
    if (gradients) {
      const auto made = gradients->take(divided_);
      grad_x_ = made[0];
      grad_weight_ = made[1];
    } else {
      x_ = own_x;
      weight_ = weight;
      targets_ = targets;
      token_weights_ = token_weights;
      logsumexp_ = logsumexp;
    }
    return scalar(total / terms_.denominator, dtype);
  }

  TensorList backward(const TensorList& grads, InputMask needs) override {
    const double grad_loss = grads[0].item();
    auto made = known_ ? made_in_forward(grad_loss, needs) : made_now(grad_loss, needs);
    return {made[0], made[1], Tensor(), Tensor()};
  }

 private:
  TensorList made_in_forward(double grad_loss, InputMask needs) {
    TensorList made{needs[0] ? grad_x_.unpack() : Tensor(),
                    needs[1] ? grad_weight_.unpack() : Tensor()};
    if (grad_loss == known_->grad_loss) return made;
    for (auto& gradient : made) {
      if (gradient.defined()) gradient = mul(gradient, grad_loss / known_->grad_loss);
    }
    return made;
  }

  TensorList made_now(double grad_loss, InputMask needs) {
    const Tensor x = gathered(x_.unpack(), for_backward({}));
    const Tensor weight = weight_.unpack(), targets = targets_.unpack();
    const Tensor token_weights = token_weights_.unpack(), logsumexp = logsumexp_.unpack();
    Gradients gradients(terms_, x, weight, grad_loss, needs);
    for_pieces(x, weight, [&]<class T>(std::int64_t begin, const Tensor& rows, Tensor& logits) {
      gradients.add<T>(begin, rows, logits, targets.data<std::int64_t>().data() + begin,
                       terms_.of_tokens<T>(token_weights, begin),
                       logsumexp.data<T>().data() + begin);
    });
    return gradients.take(divided_);
  }

  Tensor gathered(const Tensor& x, const CollectiveOptions& options) const {
    return divided_ ? gather_parts(*terms_.group, x, 0, options) : x;
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

  CrossEntropyTerms terms_;
  bool divided_;  // the rows
  std::optional<KnownGradient> known_;
  SavedTensor grad_x_{*this}, grad_weight_{*this};  // made in forward; otherwise these are kept
  SavedTensor x_{*this}, weight_{*this}, targets_{*this}, token_weights_{*this}, logsumexp_{*this};
};

}  // namespace

Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                            const CrossEntropyOptions& options, bool divided_rows) {
  check_operands("linear_cross_entropy", x, weight, targets);
  check<ValueError>(!options.class_weights.defined(),
                    "linear_cross_entropy: does not take class_weights");
  check<ShapeError>(x.ndim() == 2, "linear_cross_entropy: x must be [T, H], got ", x.shape());
  check<ShapeError>(weight.ndim() == 2 && weight.dim(1) == x.dim(1),
                    "linear_cross_entropy: weight must be [V, ", x.dim(1), "] to match x ",
                    x.shape(), ", got ", weight.shape());
  check_blocks("linear_cross_entropy", weight, 1);
  check_reals("linear_cross_entropy", "x", x);
  check_same_dtype("linear_cross_entropy", "x", x, "weight", weight);
  const Tensor rows = contiguous(targets);
  const auto& group = options.vocabulary;
  check<ValueError>(!divided_rows || group != nullptr,
                    "linear_cross_entropy: rows can be divided only where options.vocabulary is");
  const auto tokens = divided_rows ? x.dim(0) * group->size() : x.dim(0);
  const auto dtype = arithmetic_dtype(x.dtype());
  auto terms =
      cross_entropy_terms("linear_cross_entropy", rows, tokens, weight.dim(0), dtype, options);
  std::optional<KnownGradient> known;
  if (options.grad_loss) {
    const double grad_loss = scalar(*options.grad_loss, dtype).item();  // as backward is given it
    check<ValueError>(std::isfinite(grad_loss) && grad_loss != 0,
                      "linear_cross_entropy: grad_loss must be finite and not 0, got ", grad_loss);
    InputMask needs;
    if (x.requires_grad()) needs.set(0);
    if (weight.requires_grad()) needs.set(1);
    if (grad_enabled() && needs.any())
      known = KnownGradient{.grad_loss = grad_loss, .needs = needs};
  }
  return apply<LinearCrossEntropy>(made_with(std::move(terms), divided_rows, known), contiguous(x),
                                   contiguous(weight), rows, constant_weights(options));
}

}  // namespace moegrad::ops
