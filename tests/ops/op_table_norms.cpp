// SPDX-License-Identifier: Apache-2.0
// Shapes: T tokens, N heads, D row length.
#include <cmath>

#include "ops/add_rms_norm.h"
#include "ops/rms_norm.h"
#include "ops/rms_norm_rope.h"
#include "tests/ops/op_table.h"
#include "tests/testing.h"

namespace moegrad::test {
namespace {

Array normed(Array y, const Array& weight, double eps) {
  const auto d = y.dim(-1);
  for (std::size_t at = 0; at < y.values.size(); at += static_cast<std::size_t>(d)) {
    double* row = y.values.data() + at;
    double squares = 0;
    for (std::int64_t i = 0; i < d; ++i) squares += row[i] * row[i];
    const double rms = std::sqrt(squares / static_cast<double>(d) + eps);
    for (std::int64_t i = 0; i < d; ++i) row[i] = row[i] / rms * weight[{i}];
  }
  return y;
}

OpEntry rms_norm_op() {
  OpEntry entry{.op = "rms_norm"};
  entry.run = [](const TensorList& in, const Json& args) {
    return TensorList{ops::rms_norm(in[0], in[1], args["eps"])};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    return Arrays{normed(in[0], in[1], args["eps"])};
  };
  const auto sample = [](const std::string& what, const Shape& shape, double eps,
                         bool large = false) {
    return OpSample{
        .what = what,
        .inputs = {{.shape = shape, .saved = true}, {.shape = {shape[-1]}, .saved = true}},
        .args = {{"eps", eps}},
        .differences = large ? Differences::kOneDirection : Differences::kEveryElement};
  };
  entry.samples = {sample("odd sizes", {3, 7}, 1e-6),
                   sample("heads", {2, 3, 16}, 1e-6),
                   sample("rows of one", {4, 1}, 0.5),
                   sample("one dimension", {5}, 1e-5),
                   sample("a large eps", {2, 9}, 3),
                   sample("no rows", {0, 4}, 1e-6),
                   sample("several pieces", {200, 33}, 1e-6, true)};
  const auto call = [](const Tensor& x, const Tensor& weight) {
    return [=] { ops::rms_norm(x, weight); };
  };
  entry.errors = {{"no last dimension", call(randn({}), randn({1})), "ShapeError",
                   "rms_norm: x needs a last dimension of at least 1, got []"},
                  {"an empty last dimension", call(randn({2, 0}), randn({0})), "ShapeError",
                   "rms_norm: x needs a last dimension of at least 1, got [2, 0]"},
                  {"another weight", call(randn({2, 3}), randn({4})), "ShapeError",
                   "rms_norm: weight must be [3] to match x [2, 3], got [4]"},
                  {"mixed dtypes", call(randn({2, 3}), randn({3}, 1, Dtype::kFloat32)),
                   "DtypeError", "rms_norm: x is float64 but weight is float32"}};
  return entry;
}

OpEntry add_rms_norm_op() {
  OpEntry entry{.op = "add_rms_norm", .saved_outputs = {0}};
  entry.run = [](const TensorList& in, const Json& args) {
    const auto [sum, y] = ops::add_rms_norm(in[0], in[1], in[2], args["eps"]);
    return TensorList{sum, y};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    Array sum = in[0];
    for (std::size_t i = 0; i < sum.values.size(); ++i) sum.values[i] += in[1].values[i];
    return Arrays{sum, normed(sum, in[2], args["eps"])};
  };
  const auto sample = [](const std::string& what, const Shape& shape, double eps,
                         bool large = false) {
    return OpSample{
        .what = what,
        .inputs = {{.shape = shape}, {.shape = shape}, {.shape = {shape[-1]}, .saved = true}},
        .args = {{"eps", eps}},
        .differences = large ? Differences::kOneDirection : Differences::kEveryElement};
  };
  entry.samples = {
      sample("odd sizes", {3, 7}, 1e-6),  sample("three dimensions", {2, 3, 16}, 1e-6),
      sample("one row", {1, 10}, 1e-6),   sample("rows of one", {4, 1}, 0.5),
      sample("one dimension", {5}, 1e-5), sample("a large eps", {2, 9}, 3),
      sample("no rows", {0, 4}, 1e-6),    sample("several pieces", {200, 33}, 1e-6, true)};
  const auto call = [](const Shape& x, const Shape& residual, const Shape& weight) {
    return [=] { ops::add_rms_norm(randn(x), randn(residual), randn(weight)); };
  };
  const auto call_with = [](Dtype residual, Dtype weight) {
    return [=] {
      ops::add_rms_norm(randn({2, 3}), randn({2, 3}, 1, residual), randn({3}, 1, weight));
    };
  };
  entry.errors = {
      {"no last dimension", call({}, {}, {1}), "ShapeError",
       "add_rms_norm: x needs a last dimension of at least 1, got []"},
      {"an empty last dimension", call({2, 0}, {2, 0}, {0}), "ShapeError",
       "add_rms_norm: x needs a last dimension of at least 1, got [2, 0]"},
      {"a residual to repeat", call({2, 3}, {3}, {3}), "ShapeError",
       "add_rms_norm: residual must be [2, 3] to match x, got [3]"},
      {"another weight", call({2, 3}, {2, 3}, {4}), "ShapeError",
       "add_rms_norm: weight must be [3] to match x [2, 3], got [4]"},
      {"a residual of another dtype", call_with(Dtype::kFloat32, Dtype::kFloat64), "DtypeError",
       "add_rms_norm: x is float64 but residual is float32 and weight float64"},
      {"a weight of another dtype", call_with(Dtype::kFloat64, Dtype::kFloat32), "DtypeError",
       "add_rms_norm: x is float64 but residual is float64 and weight float32"}};
  return entry;
}

OpEntry rms_norm_rope_op() {
  OpEntry entry{.op = "rms_norm_rope"};
  entry.run = [](const TensorList& in, const Json& args) {
    return TensorList{ops::rms_norm_rope(in[0], in[1], {.cos = in[2], .sin = in[3]}, args["eps"])};
  };
  // Any two numbers stand for cosine and sine: the rotation is linear in its argument.
  entry.reference = [](const Arrays& in, const Json& args) {
    const auto &cos = in[2], &sin = in[3];
    const Array n = normed(in[0], in[1], args["eps"]);
    const auto half = n.dim(2) / 2;
    Array y(n.shape);
    for_each_index({n.dim(0), n.dim(1), half}, [&](const Shape& at) {
      const Shape first = at, second{at[0], at[1], half + at[2]}, angle{at[0], at[2]};
      y[first] = n[first] * cos[angle] - n[second] * sin[angle];
      y[second] = n[second] * cos[angle] + n[first] * sin[angle];
    });
    return Arrays{y};
  };
  const auto sample = [](const std::string& what, const Shape& shape, double eps,
                         bool large = false) {
    const Input table{.shape = {shape[0], shape[2] / 2}, .has_gradient = false, .saved = true};
    return OpSample{.what = what,
                    .inputs = {{.shape = shape, .saved = true},
                               {.shape = {shape[2]}, .saved = true},
                               table,
                               table},
                    .args = {{"eps", eps}},
                    .differences = large ? Differences::kOneDirection : Differences::kEveryElement};
  };
  entry.samples = {sample("odd sizes", {3, 5, 6}, 1e-6),
                   sample("one pair", {4, 1, 2}, 0.5),
                   sample("one token", {1, 2, 34}, 1e-6),
                   sample("a large eps", {2, 3, 10}, 3),
                   sample("no tokens", {0, 2, 4}, 1e-6),
                   sample("no heads", {2, 0, 4}, 1e-6),
                   sample("several pieces", {90, 3, 18}, 1e-6, true)};
  const auto call = [](const Shape& x, const Shape& weight, const Shape& cos, const Shape& sin) {
    return [=] { ops::rms_norm_rope(randn(x), randn(weight), {randn(cos), randn(sin)}); };
  };
  const auto call_with = [](Dtype weight, Dtype cos, Dtype sin) {
    return [=] {
      ops::rms_norm_rope(randn({3, 1, 4}), randn({4}, 1, weight),
                         {randn({3, 2}, 1, cos), randn({3, 2}, 1, sin)});
    };
  };
  constexpr auto kWide = Dtype::kFloat64, kNarrow = Dtype::kFloat32;
  entry.errors = {{"two dimensions", call({3, 4}, {4}, {3, 2}, {3, 2}), "ShapeError",
                   "rms_norm_rope: x must be [T, N, D], got [3, 4]"},
                  {"an odd head dimension", call({3, 1, 5}, {5}, {3, 2}, {3, 2}), "ShapeError",
                   "rms_norm_rope: the last dimension of x must be even and at least 2, got "
                   "[3, 1, 5]"},
                  {"an empty head dimension", call({3, 1, 0}, {0}, {3, 0}, {3, 0}), "ShapeError",
                   "rms_norm_rope: the last dimension of x must be even and at least 2, got "
                   "[3, 1, 0]"},
                  {"another weight", call({3, 1, 4}, {2}, {3, 2}, {3, 2}), "ShapeError",
                   "rms_norm_rope: weight must be [4] to match x [3, 1, 4], got [2]"},
                  {"sines for too few tokens", call({3, 1, 4}, {4}, {3, 2}, {2, 2}), "ShapeError",
                   "rms_norm_rope: table must be [3, 2] to match x [3, 1, 4], got cos [3, 2] and "
                   "sin [2, 2]"},
                  {"cosines for too few tokens", call({3, 1, 4}, {4}, {2, 2}, {3, 2}), "ShapeError",
                   "rms_norm_rope: table must be [3, 2] to match x [3, 1, 4], got cos [2, 2] and "
                   "sin [3, 2]"},
                  {"a weight of another dtype", call_with(kNarrow, kWide, kWide), "DtypeError",
                   "rms_norm_rope: x is float64 but weight is float32"},
                  {"a table of another dtype", call_with(kWide, kWide, kNarrow), "DtypeError",
                   "rms_norm_rope: x is float64 but the table is float64 and float32"}};
  return entry;
}

}  // namespace

std::vector<OpEntry> norm_entries() {
  return {rms_norm_op(), add_rms_norm_op(), rms_norm_rope_op()};
}

}  // namespace moegrad::test
