// SPDX-License-Identifier: Apache-2.0
// Dropout, and biases with activations. Shapes: T tokens, N heads, D features, I inner size.
#include <cmath>
#include <functional>

#include "ops/bias_activation.h"
#include "ops/dropout.h"
#include "ops/jitter.h"
#include "tests/ops/dropped_pairs.h"
#include "tests/ops/op_table.h"
#include "tests/testing.h"

namespace moegrad::test {
namespace {

Random random_of(const Json& args) {
  return Random(args["seed"], args["purpose"].get<std::string>());
}

// The id of row t, or its number if there are no ids.
double id_of(const Arrays& in, std::int64_t t) {
  return in.size() > 1 ? in[1][{t}] : static_cast<double>(t);
}

// f(x, word) for each element of x, with the random word of its row's id and its column.
Arrays by_words(const Arrays& in, const Json& args,
                const std::function<double(double value, double word)>& f) {
  Array y = in[0];
  const auto random = random_of(args);
  const auto rows = y.dim(0), width = rows == 0 ? 0 : std::ssize(y.values) / rows;
  const auto draws = static_cast<std::uint64_t>((width + 3) / 4);
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto id = static_cast<std::uint64_t>(id_of(in, r));
    for (std::int64_t c = 0; c < width; ++c) {
      const auto at = static_cast<std::uint64_t>(c);
      auto& value = y.values[static_cast<std::size_t>(r * width + c)];
      value = f(value, random.words(id * draws + at / 4)[at % 4]);
    }
  }
  return {y};
}

OpSample dropout_sample(const std::string& what, const Shape& shape, double p, std::int64_t tokens,
                        std::int64_t bound, bool large = false) {
  OpSample made{.what = what,
                .inputs = {{.shape = shape, .nz = p == 0 ? Nz::kRead : Nz::kRefused}},
                .args = {{"p", p}, {"seed", 5}, {"purpose", "mlp step 3"}},
                .differences = large ? Differences::kOneDirection : Differences::kEveryElement};
  if (bound > 0) {
    made.inputs.push_back(
        {.shape = {tokens}, .draw = Draw::kIndices, .bound = bound, .saved = p > 0});
  }
  return made;
}

OpEntry dropout_op() {
  OpEntry entry{.op = "dropout"};
  entry.run = [](const TensorList& in, const Json& args) {
    return TensorList{
        ops::dropout(in[0], args["p"], random_of(args), in.size() > 1 ? in[1] : Tensor())};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    const double p = args["p"];
    return by_words(in, args, [p](double value, double word) {
      return word >= p * 4294967296.0 ? value / (1 - p) : 0;
    });
  };
  constexpr std::int64_t kBound = std::int64_t{1} << 40;
  entry.samples = {dropout_sample("odd sizes", {5, 7}, 0.5, 5, 0),
                   dropout_sample("rows with ids", {6, 9}, 0.3, 6, kBound),
                   dropout_sample("three dimensions", {3, 2, 5}, 0.25, 3, kBound),
                   dropout_sample("one dimension", {9}, 0.5, 9, kBound),
                   dropout_sample("nothing dropped", {3, 4}, 0, 3, kBound),
                   dropout_sample("nearly all dropped", {3, 40}, 0.95, 3, 0),
                   dropout_sample("no rows", {0, 3}, 0.5, 0, kBound),
                   dropout_sample("rows of nothing", {3, 0}, 0.5, 3, 0),
                   dropout_sample("several pieces", {130, 65}, 0.1, 130, kBound, true)};
  const auto refused = [&](const std::string& what, const Tensor& x, double p, const Tensor& ids,
                           const std::string& type, const std::string& message) {
    entry.errors.push_back(
        {what, [=] { ops::dropout(x, p, Random(1, "x"), ids); }, type, "dropout: " + message});
  };
  const Tensor x = randn({2, 3});
  refused("a scalar", randn({}), 0.5, {}, "ShapeError", "x must be [T, ...], got []");
  refused("all dropped", x, 1, {}, "ValueError", "p must be in [0, 1), got 1");
  refused("a negative probability", x, -0.1, {}, "ValueError", "p must be in [0, 1), got -0.1");
  refused("no number", x, NAN, {}, "ValueError", "p must be in [0, 1), got nan");
  refused("integers", Tensor::zeros({2}, Dtype::kInt64), 0.5, {}, "DtypeError",
          "needs float32 or float64, got int64");
  refused("too few ids", x, 0.5, Tensor::arange(3), "ShapeError", "ids must be [2], got [3]");
  refused("ids that are no integers", x, 0.5, randn({2}), "DtypeError",
          "ids must be int64, got float64");
  refused("a negative id", x, 0.5, Tensor::arange(-1, 1), "ValueError",
          "id must be in [0, 9223372036854775807), got -1 at position 0");
  return entry;
}

OpEntry jitter_op() {
  OpEntry entry{.op = "jitter"};
  entry.run = [](const TensorList& in, const Json& args) {
    return TensorList{
        ops::jitter(in[0], args["noise"], random_of(args), in.size() > 1 ? in[1] : Tensor())};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    const double noise = args["noise"];
    return by_words(in, args, [noise](double value, double word) {
      return value * (1 - noise + 2 * noise * (word / 4294967296.0));
    });
  };
  constexpr std::int64_t kBound = std::int64_t{1} << 40;
  const auto sample = [](const std::string& what, const Shape& shape, double noise,
                         std::int64_t bound, bool large = false) {
    OpSample made{.what = what,
                  .inputs = {{.shape = shape, .nz = noise == 0 ? Nz::kRead : Nz::kRefused}},
                  .args = {{"noise", noise}, {"seed", 5}, {"purpose", "mlp step 3"}},
                  .differences = large ? Differences::kOneDirection : Differences::kEveryElement};
    if (bound > 0) {
      made.inputs.push_back(
          {.shape = {shape[0]}, .draw = Draw::kIndices, .bound = bound, .saved = noise > 0});
    }
    return made;
  };
  entry.samples = {sample("odd sizes", {5, 7}, 0.5, 0),
                   sample("rows with ids", {6, 9}, 0.01, kBound),
                   sample("three dimensions", {3, 2, 5}, 0.25, kBound),
                   sample("one element", {1}, 0.9, 0),
                   sample("no noise", {3, 4}, 0, kBound),
                   sample("no rows", {0, 3}, 0.5, kBound),
                   sample("several pieces", {130, 65}, 0.1, kBound, true)};
  const auto refused = [&](const std::string& what, const Tensor& x, double noise,
                           const Tensor& ids, const std::string& type, const std::string& message) {
    entry.errors.push_back(
        {what, [=] { ops::jitter(x, noise, Random(1, "x"), ids); }, type, "jitter: " + message});
  };
  const Tensor x = randn({2, 3});
  refused("a scalar", randn({}), 0.5, {}, "ShapeError", "x must be [T, ...], got []");
  refused("signs that change", x, 1, {}, "ValueError", "noise must be in [0, 1), got 1");
  refused("negative noise", x, -0.1, {}, "ValueError", "noise must be in [0, 1), got -0.1");
  refused("no number", x, NAN, {}, "ValueError", "noise must be in [0, 1), got nan");
  refused("integers", Tensor::zeros({2}, Dtype::kInt64), 0.5, {}, "DtypeError",
          "needs float32 or float64, got int64");
  refused("ids of other rows", x, 0.5, Tensor::arange(3), "ShapeError", "ids must be [2], got [3]");
  return entry;
}

OpEntry attention_dropout_op() {
  OpEntry entry{.op = "attention_dropout"};
  entry.run = [](const TensorList& in, const Json& args) {
    return TensorList{ops::attention_dropout(in[0], args["p"], args["seed"], args["purpose"],
                                             in.size() > 1 ? in[1] : Tensor())};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    Array y = in[0];
    for_each_index(y.shape, [&](const Shape& i) {
      const double p = args["p"];
      y[i] = pair_is_kept(args, i[0], id_of(in, i[1]), id_of(in, i[2])) ? y[i] / (1 - p) : 0;
    });
    return Arrays{y};
  };
  constexpr std::int64_t kBound = std::int64_t{1} << 32;
  entry.samples = {dropout_sample("two heads", {2, 5, 5}, 0.5, 5, 0),
                   dropout_sample("ids", {3, 6, 6}, 0.3, 6, kBound),
                   dropout_sample("one pair", {1, 1, 1}, 0.5, 1, kBound),
                   dropout_sample("nothing dropped", {2, 3, 3}, 0, 3, kBound),
                   dropout_sample("no tokens", {2, 0, 0}, 0.5, 0, kBound),
                   dropout_sample("several pieces", {2, 70, 70}, 0.2, 70, kBound, true)};
  const auto refused = [&](const std::string& what, const Tensor& x, double p, const Tensor& ids,
                           const std::string& type, const std::string& message) {
    entry.errors.push_back({what, [=] { ops::attention_dropout(x, p, 1, "x", ids); }, type,
                            "attention_dropout: " + message});
  };
  const Tensor x = randn({1, 2, 2});
  refused("no square", randn({1, 2, 3}), 0.5, {}, "ShapeError",
          "weights must be [N, T, T], got [1, 2, 3]");
  refused("a matrix", randn({2, 2}), 0.5, {}, "ShapeError",
          "weights must be [N, T, T], got [2, 2]");
  refused("all dropped", x, 1, {}, "ValueError", "p must be in [0, 1), got 1");
  refused("an id of 33 bits", x, 0.5, Tensor::arange(kBound - 1, kBound + 1), "ValueError",
          "id must be in [0, 4294967296), got 4294967296 at position 1");
  return entry;
}

OpEntry bias_entry(const std::string& op, const std::string& name, bool halves,
                   Tensor (*function)(const Tensor&, const Tensor&)) {
  OpEntry entry{.op = op};
  entry.run = [function](const TensorList& in, const Json&) {
    return TensorList{function(in[0], in[1])};
  };
  entry.reference = [halves](const Arrays& in, const Json&) {
    const auto& bias = in[1];
    const auto d = bias.dim(0);
    Shape shape = in[0].shape;
    shape[-1] = halves ? d / 2 : d;
    Array y(shape);
    for_each_index(shape, [&](Shape i) {
      const Shape to = i;
      const double a = in[0][i] + bias[{i[-1]}];
      if (!halves) {
        y[to] = 0.5 * a * std::erfc(-a / std::sqrt(2.0));
        return;
      }
      i[-1] += d / 2;
      y[to] = a / (1 + std::exp(-a)) * (in[0][i] + bias[{i[-1]}]);
    });
    return Arrays{y};
  };
  const auto rows = [](const std::string& what, const Shape& shape, bool large = false) {
    return OpSample{
        .what = what,
        .inputs = {{.shape = shape, .saved = true}, {.shape = {shape[-1]}, .saved = true}},
        .differences = large ? Differences::kOneDirection : Differences::kEveryElement};
  };
  entry.samples = {rows("rows", {3, 10}),      rows("one row", {6}),
                   rows("a batch", {2, 3, 4}), rows("no rows", {0, 4}),
                   rows("no columns", {3, 0}), rows("several pieces", {130, 90}, true)};
  const auto refused = [&](const std::string& what, const Tensor& x, const Tensor& bias,
                           const std::string& type, const std::string& message) {
    entry.errors.push_back({what, [=] { function(x, bias); }, type, op + ": " + message});
  };
  refused("a scalar", randn({}), randn({1}), "ShapeError",
          name + (halves ? " must be [..., 2I], got []" : " must be [..., D], got []"));
  refused("a bias of another size", randn({2, 4}), randn({2}), "ShapeError",
          "bias must be [4] to match " + name + " [2, 4], got [2]");
  refused("integers", Tensor::zeros({2, 4}, Dtype::kInt64), randn({4}), "DtypeError",
          name + " must be float32 or float64, got int64");
  refused("mixed dtypes", randn({2, 4}), randn({4}, 1, Dtype::kFloat32), "DtypeError",
          name + " is float64 but bias is float32");
  if (halves) {
    refused("an odd number of columns", randn({2, 5}), randn({5}), "ShapeError",
            "gate_up must be [..., 2I], got [2, 5]");
  }
  return entry;
}

}  // namespace

std::vector<OpEntry> dropout_entries() {
  return {dropout_op(), attention_dropout_op(), jitter_op(),
          bias_entry("bias_gelu", "x", false, ops::bias_gelu),
          bias_entry("bias_swiglu", "gate_up", true, ops::bias_swiglu)};
}

}  // namespace moegrad::test
