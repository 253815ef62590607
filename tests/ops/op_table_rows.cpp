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

OpEntry softmax_entry(const std::string& op, Tensor (*function)(const Tensor&), bool logarithm) {
  OpEntry entry{.op = op, .saved_outputs = {0}};
  entry.run = [function](const TensorList& in, const Json&) { return TensorList{function(in[0])}; };
  entry.reference = [logarithm](const Arrays& in, const Json&) {
    Array y = in[0];
    const auto d = y.dim(-1);
    for (std::size_t at = 0; at < y.values.size(); at += static_cast<std::size_t>(d)) {
      double* row = y.values.data() + at;
      const double lse = logsumexp(row, d);
      for (std::int64_t i = 0; i < d; ++i)
        row[i] = logarithm ? row[i] - lse : std::exp(row[i] - lse);
    }
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
  entry.errors = {{.what = "a scalar",
                   .call = [function] { function(randn({})); },
                   .type = "ShapeError",
                   .message = op + ": needs a last dimension, got []"},
                  {.what = "integers",
                   .call =
                       [function] {
                         function(Tensor::zeros({2, 3}, Dtype::kInt64));
                       },
                   .type = "DtypeError",
                   .message = op + ": needs float32 or float64, got int64"}};
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
  entry.errors = {{.what = "an odd number of columns",
                   .call =
                       [] {
                         ops::swiglu(randn({2, 5}));
                       },
                   .type = "ShapeError",
                   .message = "swiglu: gate_up must be [R, 2I], got [2, 5]"},
                  {.what = "one dimension",
                   .call = [] { ops::swiglu(randn({4})); },
                   .type = "ShapeError",
                   .message = "swiglu: gate_up must be [R, 2I], got [4]"},
                  {.what = "integers",
                   .call =
                       [] {
                         ops::swiglu(Tensor::zeros({2, 4}, Dtype::kInt64));
                       },
                   .type = "DtypeError",
                   .message = "swiglu: gate_up must be float32 or float64, got int64"},
                  {.what = "too few weights",
                   .call =
                       [] {
                         ops::swiglu(randn({3, 4}), randn({2}));
                       },
                   .type = "ShapeError",
                   .message = "swiglu: weights must be [3] to match gate_up [3, 4], got [2]"},
                  {.what = "mixed dtypes",
                   .call =
                       [] {
                         ops::swiglu(randn({3, 4}), randn({3}, 1, Dtype::kFloat32));
                       },
                   .type = "DtypeError",
                   .message = "swiglu: gate_up is float64 but weights is float32"}};
  return entry;
}

}  // namespace

std::vector<OpEntry> row_entries() {
  return {softmax_entry("softmax", ops::softmax, false),
          softmax_entry("log_softmax", ops::log_softmax, true), swiglu_op()};
}

}  // namespace moegrad::test
