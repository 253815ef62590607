// SPDX-License-Identifier: Apache-2.0
// Shapes: T tokens, V vocabulary.
#include <algorithm>
#include <cmath>

#include "ops/copies.h"
#include "ops/cross_entropy.h"
#include "ops/linear_cross_entropy.h"
#include "tests/ops/indices.h"
#include "tests/ops/op_table.h"
#include "tests/testing.h"

namespace moegrad::test {

double logsumexp(const Array& x, std::int64_t t) {
  double largest = x[{t, 0}], sum = 0;
  for (std::int64_t i = 0; i < x.dim(1); ++i) largest = std::max(largest, x[{t, i}]);
  for (std::int64_t i = 0; i < x.dim(1); ++i) sum += std::exp(x[{t, i}] - largest);
  return largest + std::log(sum);
}

namespace {

// Weights, if there are any, are of tokens or of classes.
bool weighs_tokens(const Json& args) { return args.value("per_token", false); }

ops::CrossEntropyOptions cross_entropy_options(const Json& args, const Tensor& weights = {}) {
  ops::CrossEntropyOptions options{.label_smoothing = args.value("smoothing", 0.0),
                                   .z_loss_coef = args.value("z_loss_coef", 0.0)};
  (weighs_tokens(args) ? options.token_weights : options.class_weights) = weights;
  if (args.contains("ignore_index")) options.ignore_index = args["ignore_index"];
  if (args.contains("denominator")) options.denominator = args["denominator"].get<double>();
  if (args.contains("grad_loss")) options.grad_loss = args["grad_loss"].get<double>();
  return options;
}

Arrays cross_entropy_reference(const Arrays& in, const Json& args) {
  const double ignored = args.value("ignore_index", -100.0);
  const double smoothing = args.value("smoothing", 0.0);
  const double z_coef = args.value("z_loss_coef", 0.0);
  const bool of_tokens = weighs_tokens(args), of_classes = in.size() > 2 && !of_tokens;
  double total = 0, valid = 0;
  for (std::int64_t t = 0; t < in[0].dim(0); ++t) {
    const double target = in[1][{t}];
    if (target == ignored) continue;
    const double lse = logsumexp(in[0], t);
    const auto weight = [&](std::int64_t v) { return of_classes ? in[2][{v}] : 1.0; };
    const auto loss = [&](std::int64_t v) { return weight(v) * (lse - in[0][{t, v}]); };
    const auto label = static_cast<std::int64_t>(target);
    double of_token = (1 - smoothing) * loss(label) + z_coef * lse * lse;
    for (std::int64_t v = 0; v < in[0].dim(1); ++v) {
      of_token += smoothing / static_cast<double>(in[0].dim(1)) * loss(v);
    }
    total += (of_tokens ? in[2][{t}] : 1.0) * of_token;
    valid += of_tokens ? in[2][{t}] : weight(label);
  }
  return {Array({}, total / args.value("denominator", valid == 0 ? 1.0 : valid))};
}

OpEntry cross_entropy_op() {
  OpEntry entry{.op = "cross_entropy"};
  entry.run = [](const TensorList& in, const Json& args) {
    return TensorList{ops::cross_entropy(
        in[0], in[1], cross_entropy_options(args, in.size() > 2 ? in[2] : Tensor()))};
  };
  entry.reference = cross_entropy_reference;
  const auto sample = [](const std::string& what, const Shape& shape,
                         const std::vector<double>& targets, const Json& args = Json::object(),
                         bool large = false) {
    return OpSample{.what = what,
                    .inputs = {{.shape = shape, .saved = true},
                               {.shape = {shape[0]},
                                .draw = Draw::kIndices,
                                .bound = shape[1],
                                .given = targets,
                                .saved = true}},
                    .args = args,
                    .differences = large ? Differences::kOneDirection : Differences::kEveryElement};
  };
  entry.samples = {sample("drawn targets", {4, 7}, {}),
                   sample("some ignored", {5, 3}, {2, -100, 0, -100, 1}),
                   sample("all ignored", {2, 3}, {-100, -100}),
                   sample("another ignored index", {3, 4}, {0, 3, 0}, {{"ignore_index", 0}}),
                   sample("a given denominator", {3, 5}, {4, -100, 1}, {{"denominator", 7.5}}),
                   sample("one class", {3, 1}, {}),
                   sample("one token", {1, 9}, {}),
                   sample("no tokens", {0, 5}, {}),
                   sample("several pieces", {90, 1000}, {}, Json::object(), true)};
  const Json smoothed{{"smoothing", 0.1}};
  entry.samples.push_back(sample("smoothed", {4, 7}, {}, smoothed));
  entry.samples.push_back(sample("smoothed, one class", {3, 1}, {}, smoothed));
  entry.samples.push_back(sample("smoothed, several pieces", {9, 1000}, {}, smoothed, true));
  entry.samples.push_back(
      sample("smoothed, some ignored", {5, 3}, {2, -100, 0, -100, 1}, {{"smoothing", 0.3}}));
  entry.samples.push_back(
      sample("z-loss, some ignored", {4, 3}, {2, -100, 0, 1}, {{"z_loss_coef", 0.2}}));
  for (const Json& args :
       {Json{{"per_token", true}},
        Json{{"per_token", true}, {"smoothing", 1}, {"z_loss_coef", 0.1}, {"denominator", 5}}}) {
    auto made = sample("token weights " + args.dump(), {5, 3}, {2, -100, 0, 0, 1}, args);
    made.inputs.push_back(
        {.shape = {5}, .draw = Draw::kPositive, .has_gradient = false, .saved = true});
    entry.samples.push_back(made);
  }
  const auto add_with_classes = [&](const std::string& what, const Shape& shape,
                                    const std::vector<double>& targets, const Json& args) {
    auto made = sample(what, shape, targets, args);
    for (auto& input : made.inputs) input.saved = false;
    made.inputs.push_back({.shape = {shape[1]}, .draw = Draw::kPositive, .has_gradient = false});
    entry.samples.push_back(made);
  };
  add_with_classes("class weights", {4, 5}, {}, Json::object());
  add_with_classes("class weights, smoothed, ignored", {4, 3}, {1, -100, 2, 2}, {{"smoothing", 1}});
  add_with_classes("class weights and a denominator", {3, 4}, {}, {{"denominator", 5}});
  add_with_classes("class weights, all ignored", {2, 3}, {-100, -100}, smoothed);
  const auto call = [](const Tensor& logits, const Tensor& labels,
                       const ops::CrossEntropyOptions& options = {}) {
    return [=] { ops::cross_entropy(logits, labels, options); };
  };
  entry.errors = {
      {"one dimension", call(randn({3}), indices_of({0})), "ShapeError",
       "cross_entropy: logits must be [T, V], got [3]"},
      {"too few targets", call(randn({2, 3}), indices_of({0})), "ShapeError",
       "cross_entropy: targets must be [2], one per token, got [1]"},
      {"integer logits", call(Tensor::zeros({1, 3}, Dtype::kInt64), indices_of({0})), "DtypeError",
       "cross_entropy: logits must be float32 or float64, got int64"},
      {"targets that are no integers", call(randn({1, 3}), randn({1})), "DtypeError",
       "cross_entropy: targets must be int64, got float64"},
      {"a target out of range", call(randn({2, 3}), indices_of({-100, 3})), "ValueError",
       "cross_entropy: target must be in [0, 3) or -100, got 3 at position 1"},
      {"a denominator of zero", call(randn({1, 3}), indices_of({0}), {.denominator = 0.0}),
       "ValueError", "cross_entropy: denominator must be positive, got 0"},
      {"too much smoothing", call(randn({1, 3}), indices_of({0}), {.label_smoothing = 1.5}),
       "ValueError", "cross_entropy: label_smoothing must be in [0, 1], got 1.5"},
      {"too few class weights", call(randn({1, 3}), indices_of({0}), {.class_weights = randn({2})}),
       "ShapeError", "cross_entropy: class_weights must be [3], got [2]"},
      {"class weights with weights of tokens",
       call(randn({1, 3}), indices_of({0}),
            {.class_weights = randn({3}), .token_weights = randn({1})}),
       "ValueError",
       "cross_entropy: class_weights go with neither token_weights nor z_loss_coef nor vocabulary"},
      {"too few token weights", call(randn({1, 3}), indices_of({0}), {.token_weights = randn({2})}),
       "ShapeError", "cross_entropy: token_weights must be [1], one per token, got [2]"},
      {"token weights of another dtype",
       call(randn({1, 3}), indices_of({0}), {.token_weights = randn({1}, 1, Dtype::kFloat32)}),
       "DtypeError", "cross_entropy: token_weights must be float64 as the loss is, got float32"},
      {"token weights whose sum is negative",
       call(randn({1, 3}), indices_of({0}), {.token_weights = Tensor::from<double>({-2}, {1})}),
       "ValueError", "cross_entropy: denominator must be positive, got -2"},
      {"a negative z-loss", call(randn({1, 3}), indices_of({0}), {.z_loss_coef = -1}), "ValueError",
       "cross_entropy: z_loss_coef must be finite and >= 0, got -1"}};
  return entry;
}

OpEntry linear_cross_entropy_op() {
  // Gradients of logits are rounded.
  OpEntry entry{.op = "linear_cross_entropy", .dtypes = kReals, .bf16_gradient_tolerance = 0x1p-6};
  entry.run = [](const TensorList& in, const Json& args) {
    const Tensor weights = in.size() > 3 ? ops::widened(in[3]) : Tensor();
    return TensorList{
        ops::linear_cross_entropy(in[0], in[1], in[2], cross_entropy_options(args, weights))};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    Array logits({in[0].dim(0), in[1].dim(0)});
    for (std::int64_t t = 0; t < logits.dim(0); ++t) {
      for (std::int64_t v = 0; v < logits.dim(1); ++v) {
        for (std::int64_t h = 0; h < in[0].dim(1); ++h) {
          logits[{t, v}] += in[0][{t, h}] * in[1][{v, h}];
        }
      }
    }
    Arrays rest = {logits, in[2]};
    if (in.size() > 3) rest.push_back(in[3]);
    return cross_entropy_reference(rest, args);
  };
  const auto sample = [](const std::string& what, std::int64_t tokens, std::int64_t hidden,
                         std::int64_t vocabulary, const std::vector<double>& targets,
                         const Json& args = Json::object(), bool large = false) {
    return OpSample{.what = what,
                    .inputs = {{.shape = {tokens, hidden}, .saved = true},
                               {.shape = {vocabulary, hidden}, .saved = true, .nz = Nz::kRead},
                               {.shape = {tokens},
                                .draw = Draw::kIndices,
                                .bound = vocabulary,
                                .given = targets,
                                .saved = true}},
                    .args = args,
                    .differences = large ? Differences::kOneDirection : Differences::kEveryElement};
  };
  entry.samples = {sample("drawn targets", 4, 5, 7, {}),
                   sample("some ignored", 5, 2, 3, {2, -100, 0, -100, 1}),
                   sample("all ignored", 2, 3, 3, {-100, -100}),
                   sample("another ignored index", 3, 1, 4, {0, 3, 0}, {{"ignore_index", 0}}),
                   sample("a given denominator", 3, 4, 5, {4, -100, 1}, {{"denominator", 7.5}}),
                   sample("one class", 3, 2, 1, {}),
                   sample("no tokens", 0, 2, 5, {}),
                   sample("several pieces", 2 * ops::kLinearCrossEntropyRows + 3, 2, 5, {},
                          Json::object(), true)};
  for (const Json& grad_loss : {Json(), Json(0.7)}) {
    const bool known = !grad_loss.is_null();
    const auto add = [&](OpSample made) {
      if (known) {
        made.what += ", gradients in forward";
        made.args["grad_loss"] = grad_loss;
        for (auto& input : made.inputs) input.saved = false;
      }
      entry.samples.push_back(made);
    };
    if (known) {
      for (auto made : std::vector(entry.samples)) {
        if (made.args.empty()) add(made);
      }
    }
    add(sample("smoothed, z-loss", 4, 3, 5, {2, -100, 0, 1},
               {{"smoothing", 0.1}, {"z_loss_coef", 0.05}}));
    auto weighted = sample("token weights", 4, 3, 5, {2, -100, 0, 1}, {{"per_token", true}});
    weighted.inputs.push_back(
        {.shape = {4}, .draw = Draw::kPositive, .has_gradient = false, .saved = true});
    add(weighted);
  }
  const Tensor x = randn({2, 4}), weight = randn({3, 4});
  const Tensor targets = indices_of({0, 1});
  const auto call = [=](const Tensor& rows, const Tensor& head,
                        const ops::CrossEntropyOptions& options = {}) {
    return [=] { ops::linear_cross_entropy(rows, head, targets, options); };
  };
  entry.errors = {{"one dimension", call(randn({4}), weight), "ShapeError",
                   "linear_cross_entropy: x must be [T, H], got [4]"},
                  {"class weights", call(x, weight, {.class_weights = randn({3})}), "ValueError",
                   "linear_cross_entropy: does not take class_weights"},
                  {"a known gradient of zero", call(x, weight, {.grad_loss = 0}), "ValueError",
                   "linear_cross_entropy: grad_loss must be finite and not 0, got 0"},
                  {"too much smoothing", call(x, weight, {.label_smoothing = 2}), "ValueError",
                   "linear_cross_entropy: label_smoothing must be in [0, 1], got 2"},
                  {"a weight that does not fit", call(x, randn({3, 5})), "ShapeError",
                   "linear_cross_entropy: weight must be [V, 4] to match x [2, 4], got [3, 5]"},
                  {"integers", call(Tensor::zeros({2, 4}, Dtype::kInt64), weight), "DtypeError",
                   "linear_cross_entropy: x must be float32, float64 or bfloat16, got int64"},
                  {"mixed dtypes", call(x, randn({3, 4}, 1, Dtype::kFloat32)), "DtypeError",
                   "linear_cross_entropy: x is float64 but weight is float32"},
                  {"a target out of range", call(x, randn({1, 4})), "ValueError",
                   "linear_cross_entropy: target must be in [0, 1) or -100, got 1 at position 1"}};
  return entry;
}

OpEntry count_targets_op() {
  OpEntry entry{.op = "count_targets", .differentiable = false};
  entry.run = [](const TensorList& in, const Json& args) {
    const std::vector<std::int64_t> count{ops::count_targets(in[0], args["ignore_index"])};
    return TensorList{Tensor::from(count, {})};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    double count = 0;
    for (const auto value : in[0].values) count += value != args["ignore_index"].get<double>();
    return Arrays{Array({}, count)};
  };
  const auto sample = [](const std::string& what, const Shape& shape,
                         const std::vector<double>& targets, std::int64_t ignored) {
    return OpSample{
        .what = what,
        .inputs = {{.shape = shape, .draw = Draw::kIndices, .bound = 3, .given = targets}},
        .args = {{"ignore_index", ignored}}};
  };
  entry.samples = {sample("some ignored", {5}, {2, -100, 0, -100, 1}, -100),
                   sample("another ignored index", {7, 5}, {}, 2), sample("one", {1}, {4}, 4),
                   sample("none", {0}, {}, -100)};
  entry.errors = {{"targets that are no integers", [] { ops::count_targets(randn({2})); },
                   "DtypeError", "count_targets: targets must be int64, got float64"}};
  return entry;
}

}  // namespace

std::vector<OpEntry> loss_entries() {
  return {cross_entropy_op(), linear_cross_entropy_op(), count_targets_op()};
}

}  // namespace moegrad::test
