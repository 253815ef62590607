// SPDX-License-Identifier: Apache-2.0
// Shapes: T rows, V classes.
#include "ops/losses.h"

#include <cmath>
#include <string_view>

#include "ops/broadcast.h"
#include "ops/checks.h"
#include "ops/copies.h"
#include "ops/elementwise.h"
#include "ops/indexing.h"
#include "ops/masks.h"
#include "ops/reduce.h"
#include "ops/views.h"

namespace moegrad::ops {
namespace {

Tensor reduce(const Tensor& losses, Reduction reduction) {
  if (reduction == Reduction::kNone) return losses;
  return reduction == Reduction::kSum ? sum(losses) : mean(losses);
}

void check_pair(std::string_view op, std::string_view name_a, const Tensor& a,
                std::string_view name_b, const Tensor& b) {
  check<ShapeError>(a.shape() == b.shape(), op, ": ", name_b, " must be ", a.shape(), " as ",
                    name_a, ", got ", b.shape());
  check_floating(op, name_a, a);
  check_same_dtype(op, name_a, a, name_b, b);
}

// ValueError for a weight that would turn losses around or into NaN.
void check_weights(std::string_view op, std::string_view name, const Tensor& weights) {
  const Tensor values = contiguous(weights.detach());
  dispatch_floating(values.dtype(), [&]<class T>() {
    for (const auto value : values.data<T>()) {
      check<ValueError>(std::isfinite(value) && value >= 0, op, ": ", name,
                        " must be finite and >= 0, got ", value);
    }
  });
}

// A contiguous copy without graph.
Tensor checked_probabilities(std::string_view op, std::string_view name, const Tensor& p) {
  const Tensor values = contiguous(p.detach());
  dispatch_floating(values.dtype(), [&]<class T>() {
    for (const auto value : values.data<T>()) {
      check<ValueError>(0 <= value && value <= 1, op, ": ", name, " must be in [0, 1], got ",
                        value);
    }
  });
  return values;
}

}  // namespace

Tensor mse_loss(const Tensor& input, const Tensor& target, Reduction reduction) {
  check_operands("mse_loss", input, target);
  check_pair("mse_loss", "input", input, "target", target);
  return reduce(square(sub(input, target)), reduction);
}

Tensor binary_cross_entropy_with_logits(const Tensor& input, const Tensor& target,
                                        const Tensor& pos_weight, Reduction reduction) {
  constexpr std::string_view kName = "binary_cross_entropy_with_logits";
  check_operands(kName, input, target);
  check_pair(kName, "input", input, "target", target);
  const Tensor y = checked_probabilities(kName, "target", target);
  Tensor losses = mul(1 - y, input);
  if (!pos_weight.defined()) return reduce(add(losses, softplus(neg(input))), reduction);
  check_operands(kName, pos_weight);
  check<ShapeError>(can_expand(pos_weight.shape(), input.shape()), kName,
                    ": pos_weight must repeat to ", input.shape(), ", got ", pos_weight.shape());
  check_same_dtype(kName, "input", input, "pos_weight", pos_weight);
  check_weights(kName, "pos_weight", pos_weight);
  const Tensor factor = add(mul(add(pos_weight.detach(), -1), y), 1);
  return reduce(add(losses, mul(factor, softplus(neg(input)))), reduction);
}

Tensor nll_loss(const Tensor& log_p, const Tensor& targets, const NllOptions& options) {
  check_operands("nll_loss", log_p, targets);
  check<ShapeError>(log_p.ndim() == 2, "nll_loss: log_p must be [T, V], got ", log_p.shape());
  const auto tokens = log_p.dim(0), classes = log_p.dim(1);
  check<ShapeError>(targets.shape() == Shape{tokens}, "nll_loss: targets must be [", tokens,
                    "], got ", targets.shape());
  check_floating("nll_loss", "log_p", log_p);
  check<DtypeError>(targets.dtype() == Dtype::kInt64, "nll_loss: targets must be int64, got ",
                    targets.dtype());
  const Tensor is_ignored =
      eq(targets, Tensor::from(std::vector{options.ignore_index}, {}));  // [T]
  const Tensor indices = contiguous(masked_fill(targets, is_ignored, 0));
  check_indices("nll_loss", "target", indices, classes);
  Tensor weights = Tensor::ones({tokens}, log_p.dtype());
  if (options.class_weights.defined()) {
    check_operands("nll_loss", options.class_weights);
    check<ShapeError>(options.class_weights.shape() == Shape{classes},
                      "nll_loss: class_weights must be [", classes, "], got ",
                      options.class_weights.shape());
    check_same_dtype("nll_loss", "log_p", log_p, "class_weights", options.class_weights);
    check_weights("nll_loss", "class_weights", options.class_weights);
    weights = index_select(options.class_weights.detach(), 0, indices);
  }
  weights = masked_fill(weights, is_ignored, 0);
  const Tensor picked = squeeze(gather(log_p, 1, unsqueeze(indices, 1)), 1);  // [T]
  // Not a product with 0, which is NaN where log_p is -infinity.
  const Tensor losses = masked_fill(neg(mul(weights, picked)), is_ignored, 0);
  if (options.reduction == Reduction::kNone) return losses;
  const Tensor total = sum(losses);
  return options.reduction == Reduction::kSum ? total : div(total, sum(weights));
}

Tensor kl_div(const Tensor& log_q, const Tensor& p, Reduction reduction, bool log_target) {
  check_operands("kl_div", log_q, p);
  check_pair("kl_div", "log_q", log_q, "p", p);
  const Tensor values = log_target ? exp(p.detach()) : checked_probabilities("kl_div", "p", p);
  const Tensor logs = log_target ? p.detach() : log(values);
  const Tensor products = mul(values, sub(logs, log_q));
  return reduce(masked_fill(products, eq(values, 0), 0), reduction);
}

}  // namespace moegrad::ops
