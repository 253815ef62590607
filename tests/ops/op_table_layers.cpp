// SPDX-License-Identifier: Apache-2.0
// Layer norm and the losses of losses.h. Shapes: T rows, V classes, D row length.
#include <cmath>
#include <functional>

#include "ops/layer_norm.h"
#include "ops/losses.h"
#include "tests/ops/indices.h"
#include "tests/ops/op_table.h"
#include "tests/testing.h"

namespace moegrad::test {
namespace {

// The inputs after x: a weight if args say so, then a bias if args say so.
OpEntry layer_norm_op() {
  OpEntry entry{.op = "layer_norm"};
  entry.run = [](const TensorList& in, const Json& args) {
    const bool weight = args["weight"], bias = args["bias"];
    return TensorList{ops::layer_norm(in[0], weight ? in[1] : Tensor(), bias ? in.back() : Tensor(),
                                      args["eps"])};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    Array y = in[0];
    const auto d = y.dim(-1);
    for (std::size_t at = 0; at < y.values.size(); at += static_cast<std::size_t>(d)) {
      double* row = y.values.data() + at;
      double mean = 0, squares = 0;
      for (std::int64_t i = 0; i < d; ++i) mean += row[i] / static_cast<double>(d);
      for (std::int64_t i = 0; i < d; ++i) squares += (row[i] - mean) * (row[i] - mean);
      const double deviation =
          std::sqrt(squares / static_cast<double>(d) + args["eps"].get<double>());
      for (std::int64_t i = 0; i < d; ++i) {
        row[i] = (row[i] - mean) / deviation;
        if (args["weight"].get<bool>()) row[i] *= in[1][{i}];
        if (args["bias"].get<bool>()) row[i] += in.back()[{i}];
      }
    }
    return Arrays{y};
  };
  const auto sample = [](const std::string& what, const Shape& shape, bool weight, bool bias,
                         double eps, bool large = false) {
    OpSample made{.what = what,
                  .inputs = {{.shape = shape, .saved = true}},
                  .args = {{"weight", weight}, {"bias", bias}, {"eps", eps}},
                  .differences = large ? Differences::kOneDirection : Differences::kEveryElement};
    if (weight) made.inputs.push_back({.shape = {shape[-1]}, .saved = true});
    if (bias) made.inputs.push_back({.shape = {shape[-1]}});
    return made;
  };
  auto far = sample("far from zero", {2, 3}, true, true, 1e-5);
  far.inputs[0].given = {100, 101, 103, -200, -201, -198};
  far.gradcheck_eps = 1e-5;
  entry.samples = {sample("neither", {4, 6}, false, false, 1e-5),
                   sample("weight and bias", {3, 7}, true, true, 1e-5),
                   sample("three dimensions", {2, 3, 16}, true, true, 1e-5),
                   sample("weight alone", {3, 5}, true, false, 1e-6),
                   sample("bias alone", {3, 5}, false, true, 1e-6),
                   sample("one dimension", {5}, true, true, 1e-5),
                   sample("rows of one", {4, 1}, true, true, 0.5),
                   sample("a large eps", {2, 9}, true, true, 3),
                   sample("no rows", {0, 4}, true, true, 1e-5),
                   far,
                   sample("several pieces", {200, 33}, true, true, 1e-5, true)};
  const auto refused = [&](const std::string& what, const Tensor& x, const Tensor& weight,
                           const Tensor& bias, double eps, const std::string& type,
                           const std::string& message) {
    entry.errors.push_back(
        {what, [=] { ops::layer_norm(x, weight, bias, eps); }, type, "layer_norm: " + message});
  };
  const Tensor x = randn({2, 3}), row = randn({3});
  refused("a scalar", randn({}), {}, {}, 1e-5, "ShapeError",
          "x needs a last dimension of at least 1, got []");
  refused("empty rows", randn({2, 0}), {}, {}, 1e-5, "ShapeError",
          "x needs a last dimension of at least 1, got [2, 0]");
  refused("another weight", x, randn({2}), row, 1e-5, "ShapeError",
          "weight must be [3] to match x [2, 3], got [2]");
  refused("another bias", x, row, randn({1, 3}), 1e-5, "ShapeError",
          "bias must be [3] to match x [2, 3], got [1, 3]");
  refused("a negative eps", x, row, row, -1e-5, "ValueError",
          "eps must be finite and >= 0, got -1e-05");
  refused("integers", Tensor::zeros({2, 3}, Dtype::kInt64), {}, {}, 1e-5, "DtypeError",
          "x must be float32 or float64, got int64");
  refused("a weight of another dtype", x, randn({3}, 1, Dtype::kFloat32), {}, 1e-5, "DtypeError",
          "x is float64 but weight is float32");
  return entry;
}

ops::Reduction reduction_of(const Json& args) {
  const auto name = args["reduction"].get<std::string>();
  return name == "none"  ? ops::Reduction::kNone
         : name == "sum" ? ops::Reduction::kSum
                         : ops::Reduction::kMean;
}

Arrays reduced_losses(const Array& losses, const Json& args) {
  const auto name = args["reduction"].get<std::string>();
  if (name == "none") return {losses};
  double total = 0;
  for (const auto loss : losses.values) total += loss;
  return {Array({}, name == "sum" ? total : total / static_cast<double>(losses.values.size()))};
}

OpSample loss_sample(const std::string& what, const Shape& shape, const std::string& reduction,
                     Draw target, bool target_has_gradient) {
  return {.what = what,
          .inputs = {{.shape = shape},
                     {.shape = shape, .draw = target, .has_gradient = target_has_gradient}},
          .args = {{"reduction", reduction}}};
}

// Makes the targets probabilities.
void give_probabilities(OpSample& sample) {
  auto& target = sample.inputs[1];
  for (std::int64_t i = 0; i < target.shape.numel(); ++i) {
    target.given.push_back(static_cast<double>(i % 5) / 4);  // 0 and 1 among them
  }
}

std::vector<OpError> pair_errors(const std::string& op, const std::string& a, const std::string& b,
                                 const std::function<void(const Tensor&, const Tensor&)>& call) {
  return {{"other shapes",
           [=] {
             call(randn({2, 1}), randn({2}));
           },
           "ShapeError", op + ": " + b + " must be [2, 1] as " + a + ", got [2]"},
          {"integers",
           [=] {
             const Tensor x = Tensor::zeros({2}, Dtype::kInt64);
             call(x, x);
           },
           "DtypeError", op + ": " + a + " must be float32 or float64, got int64"},
          {"mixed dtypes", [=] { call(randn({2}), Tensor::zeros({2})); }, "DtypeError",
           op + ": " + a + " is float64 but " + b + " is float32"}};
}

OpEntry mse_loss_op() {
  OpEntry entry{.op = "mse_loss"};
  entry.run = [](const TensorList& in, const Json& args) {
    return TensorList{ops::mse_loss(in[0], in[1], reduction_of(args))};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    Array losses = in[0];
    for (std::size_t i = 0; i < losses.values.size(); ++i) {
      losses.values[i] = (in[0].values[i] - in[1].values[i]) * (in[0].values[i] - in[1].values[i]);
    }
    return reduced_losses(losses, args);
  };
  for (const auto* const reduction : {"mean", "sum", "none"}) {
    entry.samples.push_back(
        loss_sample(std::string("the ") + reduction, {3, 5}, reduction, Draw::kNormal, true));
  }
  entry.samples.push_back(loss_sample("a scalar", {}, "mean", Draw::kNormal, true));
  entry.samples.push_back(loss_sample("nothing", {0, 2}, "sum", Draw::kNormal, true));
  entry.errors = pair_errors("mse_loss", "input", "target",
                             [](const auto& a, const auto& b) { ops::mse_loss(a, b); });
  return entry;
}

OpEntry bce_op() {
  const std::string name = "binary_cross_entropy_with_logits";
  OpEntry entry{.op = name};
  entry.run = [](const TensorList& in, const Json& args) {
    return TensorList{ops::binary_cross_entropy_with_logits(
        in[0], in[1], in.size() > 2 ? in[2] : Tensor(), reduction_of(args))};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    Array losses = in[0];
    for_each_index(losses.shape, [&](const Shape& i) {
      const double x = in[0][i], y = in[1][i];
      const double weight = in.size() > 2 ? broadcast_at(in[2], i) : 1;
      const double negative = x < -30 ? -x : std::log1p(std::exp(-x));  // -log sigmoid(x)
      const double positive = x > 30 ? x : std::log1p(std::exp(x));
      losses[i] = weight * y * negative + (1 - y) * positive;
    });
    return reduced_losses(losses, args);
  };
  for (const auto* const reduction : {"mean", "sum", "none"}) {
    entry.samples.push_back(
        loss_sample(std::string("the ") + reduction, {3, 5}, reduction, Draw::kNormal, false));
  }
  entry.samples.push_back(loss_sample("far from zero", {6}, "none", Draw::kNormal, false));
  entry.samples.back().inputs[0].given = {-800, 800, -40, 40, 0, 1e-8};
  entry.samples.push_back(loss_sample("a scalar", {}, "mean", Draw::kNormal, false));
  entry.samples.push_back(loss_sample("nothing", {0, 2}, "sum", Draw::kNormal, false));
  entry.samples.push_back(loss_sample("weights of classes", {4, 3}, "mean", Draw::kNormal, false));
  for (auto& sample : entry.samples) give_probabilities(sample);
  entry.samples.back().inputs.push_back(
      {.shape = {3}, .draw = Draw::kPositive, .has_gradient = false});
  entry.errors = pair_errors(name, "input", "target", [](const auto& a, const auto& b) {
    ops::binary_cross_entropy_with_logits(a, b);
  });
  const auto call = [](const Tensor& input, const Tensor& target, const Tensor& pos_weight = {}) {
    return [=] { ops::binary_cross_entropy_with_logits(input, target, pos_weight); };
  };
  entry.errors.push_back({"targets that are no probabilities",
                          call(randn({2}), Tensor::full({2}, 2, Dtype::kFloat64)), "ValueError",
                          name + ": target must be in [0, 1], got 2"});
  entry.errors.push_back({"weights that do not repeat",
                          call(randn({3}), Tensor::zeros({3}, Dtype::kFloat64), randn({2})),
                          "ShapeError", name + ": pos_weight must repeat to [3], got [2]"});
  return entry;
}

OpEntry nll_loss_op() {
  OpEntry entry{.op = "nll_loss", .saved_by = "gather"};
  const auto options = [](const TensorList& in, const Json& args) {
    return ops::NllOptions{.class_weights = in.size() > 2 ? in[2] : Tensor(),
                           .ignore_index = args.value("ignore_index", std::int64_t{-100}),
                           .reduction = reduction_of(args)};
  };
  entry.run = [=](const TensorList& in, const Json& args) {
    return TensorList{ops::nll_loss(in[0], in[1], options(in, args))};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    Array losses({in[0].dim(0)});
    double total = 0, weights = 0;
    for (std::int64_t t = 0; t < losses.dim(0); ++t) {
      const auto target = static_cast<std::int64_t>(in[1][{t}]);
      if (target == args.value("ignore_index", std::int64_t{-100})) continue;
      const double weight = in.size() > 2 ? in[2][{target}] : 1;
      losses[{t}] = -weight * in[0][{t, target}];
      total += losses[{t}];
      weights += weight;
    }
    const auto reduction = args["reduction"].get<std::string>();
    if (reduction == "none") return Arrays{losses};
    return Arrays{Array({}, reduction == "sum" ? total : total / weights)};
  };
  const auto sample = [](const std::string& what, const Shape& shape,
                         const std::vector<double>& targets, const std::string& reduction,
                         bool weights = false) {
    OpSample made{.what = what,
                  .inputs = {{.shape = shape},
                             {.shape = {shape[0]},
                              .draw = Draw::kIndices,
                              .bound = shape[1],
                              .given = targets}},
                  .args = {{"reduction", reduction}}};
    if (weights) {
      made.inputs.push_back({.shape = {shape[1]}, .draw = Draw::kPositive, .has_gradient = false});
    }
    return made;
  };
  entry.samples = {sample("the mean", {4, 7}, {}, "mean"),
                   sample("the sum", {4, 7}, {}, "sum"),
                   sample("each", {4, 7}, {}, "none"),
                   sample("some ignored", {5, 3}, {2, -100, 0, -100, 1}, "mean"),
                   sample("weights, some ignored", {5, 3}, {2, -100, 0, -100, 1}, "mean", true),
                   sample("weights, each", {3, 4}, {3, 0, 0}, "none", true),
                   sample("no rows", {0, 3}, {}, "sum")};
  entry.samples.push_back(sample("another ignored index", {3, 4}, {0, 3, 0}, "mean"));
  entry.samples.back().args["ignore_index"] = 0;
  const auto refused = [&](const std::string& what, const Tensor& log_p, const Tensor& labels,
                           const Tensor& weights, const std::string& type,
                           const std::string& message) {
    entry.errors.push_back({what, [=] { ops::nll_loss(log_p, labels, {.class_weights = weights}); },
                            type, "nll_loss: " + message});
  };
  refused("one dimension", randn({3}), indices_of({0}), {}, "ShapeError",
          "log_p must be [T, V], got [3]");
  refused("too few targets", randn({2, 3}), indices_of({0}), {}, "ShapeError",
          "targets must be [2], got [1]");
  refused("targets that are no integers", randn({1, 3}), randn({1}), {}, "DtypeError",
          "targets must be int64, got float64");
  refused("a target out of range", randn({2, 3}), indices_of({-100, 3}), {}, "ValueError",
          "target must be in [0, 3), got 3 at position 1");
  refused("too few weights", randn({1, 3}), indices_of({0}), randn({2}), "ShapeError",
          "class_weights must be [3], got [2]");
  refused("integers", Tensor::zeros({1, 3}, Dtype::kInt64), indices_of({0}), {}, "DtypeError",
          "log_p must be float32 or float64, got int64");
  return entry;
}

OpEntry kl_div_op() {
  OpEntry entry{.op = "kl_div", .saved_by = "mul"};
  entry.run = [](const TensorList& in, const Json& args) {
    return TensorList{ops::kl_div(in[0], in[1], reduction_of(args), args.contains("log_target"))};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    Array losses = in[0];
    for (std::size_t i = 0; i < losses.values.size(); ++i) {
      const double given = in[1].values[i];
      const double p = args.contains("log_target") ? std::exp(given) : given;
      losses.values[i] = p == 0 ? 0 : p * (std::log(p) - in[0].values[i]);
    }
    return reduced_losses(losses, args);
  };
  for (const auto* const reduction : {"mean", "sum", "none"}) {
    entry.samples.push_back(
        loss_sample(std::string("the ") + reduction, {3, 5}, reduction, Draw::kNormal, false));
  }
  entry.samples.push_back(loss_sample("a scalar", {}, "mean", Draw::kNormal, false));
  entry.samples.push_back(loss_sample("nothing", {0, 2}, "sum", Draw::kNormal, false));
  for (auto& sample : entry.samples) {
    give_probabilities(sample);
    sample.inputs[1].saved = true;
  }
  auto logs = loss_sample("log p", {3, 5}, "mean", Draw::kNormal, false);
  logs.inputs[1].has_gradient = false;
  logs.args["log_target"] = true;
  entry.samples.push_back(logs);
  entry.errors =
      pair_errors("kl_div", "log_q", "p", [](const auto& a, const auto& b) { ops::kl_div(a, b); });
  entry.errors.push_back({"a negative probability",
                          [] { ops::kl_div(randn({2}), Tensor::full({2}, -0.5, Dtype::kFloat64)); },
                          "ValueError", "kl_div: p must be in [0, 1], got -0.5"});
  return entry;
}

}  // namespace

std::vector<OpEntry> layer_entries() {
  return {layer_norm_op(), mse_loss_op(), bce_op(), nll_loss_op(), kl_div_op()};
}

}  // namespace moegrad::test
