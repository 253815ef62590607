// SPDX-License-Identifier: Apache-2.0
// Shapes: D row length, R rows, I inner size.
#include <algorithm>
#include <cmath>

#include "ops/softmax.h"
#include "ops/swiglu.h"
#include "tests/ops/op_table.h"
#include "tests/testing.h"

namespace moegrad::test {
namespace {

// log sum_i exp(x_i) of the D elements from `row`.
double logsumexp(const double* row, std::int64_t d) {
  const double largest = *std::max_element(row, row + d);
  double sum = 0;
  for (std::int64_t i = 0; i < d; ++i) sum += std::exp(row[i] - largest);
  return largest + std::log(sum);
}

OpEntry softmax_entry(const std::string& op, Tensor (*function)(const Tensor&, std::int64_t),
                      bool logarithm) {
  OpEntry entry{.op = op, .saved_outputs = {0}, .saved_by = op};
  entry.run = [function](const TensorList& in, const Json& args) {
    return TensorList{function(in[0], args["dim"])};
  };
  entry.reference = [logarithm](const Arrays& in, const Json& args) {
    Array y = in[0];
    const auto dim = from_front(args["dim"], y.shape.ndim());
    Shape lines = y.shape;
    if (lines[dim] > 0) lines[dim] = 1;
    for_each_index(lines, [&](Shape i) {
      std::vector<double> line;
      for (i[dim] = 0; i[dim] < y.dim(dim); ++i[dim]) line.push_back(y[i]);
      const double lse = logsumexp(line.data(), y.dim(dim));
      for (i[dim] = 0; i[dim] < y.dim(dim); ++i[dim]) {
        y[i] = logarithm ? y[i] - lse : std::exp(y[i] - lse);
      }
    });
    return Arrays{y};
  };
  entry.samples = {
      {.what = "odd sizes", .inputs = {{.shape = {3, 5}}}},
      {.what = "three dimensions", .inputs = {{.shape = {2, 3, 17}}}},
      {.what = "rows of one", .inputs = {{.shape = {4, 1}}}},
      {.what = "one dimension", .inputs = {{.shape = {9}}}},
      {.what = "far apart", .inputs = {{.shape = {2, 3}, .given = {-20, 5, 20, 700, 699, 690}}}},
      {.what = "no rows", .inputs = {{.shape = {0, 4}}}},
      {.what = "empty rows", .inputs = {{.shape = {3, 0}}}},
      {.what = "several pieces",
       .inputs = {{.shape = {90, 130}}},
       .differences = Differences::kOneDirection}};
  for (auto& sample : entry.samples) sample.args["dim"] = -1;
  const auto along = [&](const std::string& what, const Shape& shape, std::int64_t dim) {
    entry.samples.push_back({.what = what,
                             .inputs = {{.shape = shape}},
                             .args = {{"dim", dim}},
                             .saves_outputs = false});  // a copy in another order
  };
  along("columns", {3, 5}, 0);
  along("the middle", {2, 5, 3}, -2);
  along("no columns", {3, 0}, 0);
  entry.samples.back().saves_outputs = true;  // nothing is copied
  const auto call = [function](const Tensor& x, std::int64_t dim) {
    return [=] { function(x, dim); };
  };
  entry.errors = {{"a scalar", call(randn({}), -1), "ShapeError",
                   op + ": needs at least one dimension, got []"},
                  {"integers", call(Tensor::zeros({2, 3}, Dtype::kInt64), 0), "DtypeError",
                   op + ": needs float32 or float64, got int64"}};
  return entry;
}

OpEntry swiglu_op() {
  OpEntry entry{.op = "swiglu"};
  entry.run = [](const TensorList& in, const Json&) {
    return TensorList{ops::swiglu(in[0], in.size() > 1 ? in[1] : Tensor())};
  };
  entry.reference = [](const Arrays& in, const Json&) {
    const auto inner = in[0].dim(1) / 2;
    Array y({in[0].dim(0), inner});
    for_each_index(y.shape, [&](const Shape& i) {
      const double gate = in[0][i], up = in[0][{i[0], inner + i[1]}];
      const double weight = in.size() > 1 ? in[1][{i[0]}] : 1;
      y[i] = weight * gate / (1 + std::exp(-gate)) * up;
    });
    return Arrays{y};
  };
  const auto sample = [](const std::string& what, const Shape& shape, bool large = false) {
    return OpSample{.what = what,
                    .inputs = {{.shape = shape, .saved = true}},
                    .differences = large ? Differences::kOneDirection : Differences::kEveryElement};
  };
  const auto weighted = [&](const std::string& what, const Shape& shape, bool large = false) {
    auto made = sample("weights, " + what, shape, large);
    made.inputs.push_back({.shape = {shape[0]}, .saved = true});
    return made;
  };
  entry.samples = {sample("odd sizes", {3, 10}),
                   sample("one pair", {1, 2}),
                   sample("a vector and a tail", {2, 34}),
                   sample("no rows", {0, 6}),
                   sample("no columns", {3, 0}),
                   sample("several pieces", {300, 150}, true),
                   weighted("odd sizes", {3, 10}),
                   weighted("one pair", {1, 2}),
                   weighted("a vector and a tail", {2, 34}),
                   weighted("no rows", {0, 6}),
                   weighted("no columns", {3, 0}),
                   weighted("several pieces", {300, 150}, true)};
  const auto call = [](const Tensor& gate_up, const auto&... weights) {
    return [=] { ops::swiglu(gate_up, weights...); };
  };
  entry.errors = {
      {"an odd number of columns", call(randn({2, 5})), "ShapeError",
       "swiglu: gate_up must be [R, 2I], got [2, 5]"},
      {"one dimension", call(randn({4})), "ShapeError", "swiglu: gate_up must be [R, 2I], got [4]"},
      {"integers", call(Tensor::zeros({2, 4}, Dtype::kInt64)), "DtypeError",
       "swiglu: gate_up must be float32, float64 or bfloat16, got int64"},
      {"too few weights", call(randn({3, 4}), randn({2})), "ShapeError",
       "swiglu: weights must be [3] to match gate_up [3, 4], got [2]"},
      {"mixed dtypes", call(randn({3, 4}), randn({3}, 1, Dtype::kFloat32)), "DtypeError",
       "swiglu: gate_up is float64 but weights is float32"}};
  return entry;
}

}  // namespace

std::vector<OpEntry> row_entries() {
  return {softmax_entry("softmax", ops::softmax, false),
          softmax_entry("log_softmax", ops::log_softmax, true), swiglu_op()};
}

}  // namespace moegrad::test
