// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "ops/statistics.h"
#include "tests/ops/op_table_lines.h"
#include "tests/testing.h"

namespace moegrad::test {
namespace {

double variance(const std::vector<double>& line, const Json& args) {
  double mean = 0, sum = 0;
  const auto n = static_cast<double>(line.size());
  for (const auto value : line) mean += value / n;
  for (const auto value : line) sum += (value - mean) * (value - mean);
  return sum / std::max(0.0, n - args["correction"].get<double>());
}

double log_sum_exp(const std::vector<double>& line) {
  if (line.empty()) return -std::numeric_limits<double>::infinity();
  const double largest = *std::ranges::max_element(line);
  double sum = 0;
  for (const auto value : line) sum += std::exp(value - largest);
  return largest + std::log(sum);
}

std::vector<OpSample> statistics_samples() {
  return {line_sample("rows", {3, 7}, -1, false),
          line_sample("columns", {3, 7}, 0, true),
          line_sample("the middle", {2, 3, 5}, 1, false),
          line_sample("the middle, kept", {2, 3, 5}, -2, true),
          line_sample("two", {2}, 0, false),
          line_sample("no results", {0, 3}, 1, false),
          line_sample("several pieces", {257, 130}, 1, false, true)};
}

using LineCall = std::function<void(const Tensor&, std::int64_t)>;

std::vector<OpError> line_errors(const std::string& op, const LineCall& call) {
  return {{"integers", [=] { call(Tensor::zeros({2}, Dtype::kInt64), 0); }, "DtypeError",
           op + ": needs float32 or float64, got int64"},
          {"a dimension out of range",
           [=] {
             call(randn({2, 3}), -3);
           },
           "ShapeError", op + ": dimension must be in [-2, 1], got -3"}};
}

OpEntry variance_op(const std::string& op,
                    Tensor (*function)(const Tensor&, std::int64_t, double, bool), bool root) {
  OpEntry entry{.op = op, .parameters = "Tensor, int64, double, bool"};
  if (root) entry.saved_outputs = {0};
  entry.saved_by = op;
  entry.run = [function](const TensorList& in, const Json& args) {
    return TensorList{function(in[0], args["dim"], args["correction"], args["keepdim"])};
  };
  entry.reference = [root](const Arrays& in, const Json& args) {
    return Arrays{fold_lines(in[0], args, [&](const auto& line) {
      return root ? std::sqrt(variance(line, args)) : variance(line, args);
    })};
  };
  for (auto each : statistics_samples()) {
    each.args["correction"] = 1;
    entry.samples.push_back(each);
  }
  const auto add = [&](OpSample each, double correction) {
    each.args["correction"] = correction;
    entry.samples.push_back(each);
  };
  add(line_sample("of a whole population", {3, 4}, 1, false), 0);
  add(line_sample("of one", {3, 1}, 1, false), 0);
  entry.samples.back().differences = Differences::kNone;  // a kink for std
  add(line_sample("a larger correction", {5, 2}, 0, false), 2.5);
  entry.errors = line_errors(
      op, [function](const Tensor& x, std::int64_t dim) { function(x, dim, 1, false); });
  entry.errors.push_back({"a correction that is no number",
                          [function] { function(randn({2}), 0, NAN, false); }, "ValueError",
                          op + ": correction must be finite, got nan"});
  return entry;
}

OpEntry whole_variance_op(const std::string& op, Tensor (*function)(const Tensor&), bool root) {
  OpEntry entry{.op = op, .parameters = "Tensor"};
  if (root) entry.saved_outputs = {0};
  entry.saved_by = op;  // of another shape
  entry.run = [function](const TensorList& in, const Json&) { return TensorList{function(in[0])}; };
  entry.reference = [root](const Arrays& in, const Json&) {
    const double found = variance(in[0].values, {{"correction", 1}});
    return Arrays{Array({}, root ? std::sqrt(found) : found)};
  };
  entry.samples = {{.what = "a matrix", .inputs = {{.shape = {3, 7}}}},
                   {.what = "three dimensions", .inputs = {{.shape = {2, 3, 5}}}},
                   {.what = "two", .inputs = {{.shape = {1, 2}}}},
                   {.what = "nothing", .inputs = {{.shape = {0, 3}}}},
                   {.what = "several pieces",
                    .inputs = {{.shape = {130, 257}}},
                    .differences = Differences::kOneDirection}};
  for (auto& sample : entry.samples) sample.inputs[0].nz = Nz::kOtherShapeOnly;
  entry.errors = {{"integers", [function] { function(Tensor::zeros({2}, Dtype::kInt64)); },
                   "DtypeError", op + ": needs float32 or float64, got int64"}};
  return entry;
}

OpEntry logsumexp_op() {
  OpEntry entry{.op = "logsumexp", .saved_outputs = {0}, .saved_by = "logsumexp"};
  entry.run = [](const TensorList& in, const Json& args) {
    return TensorList{ops::logsumexp(in[0], args["dim"], args["keepdim"])};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    return Arrays{fold_lines(in[0], args, log_sum_exp)};
  };
  entry.samples = statistics_samples();
  auto apart = line_sample("far apart", {2, 3}, 1, true);
  apart.inputs[0].given = {-20, 5, 20, 700, 699, 690};
  entry.samples.push_back(apart);
  entry.samples.push_back(line_sample("size one", {3, 1}, 1, false));
  for (auto& each : entry.samples) each.inputs[0].saved = true;
  entry.errors =
      line_errors("logsumexp", [](const Tensor& x, std::int64_t dim) { ops::logsumexp(x, dim); });
  return entry;
}

OpEntry cumsum_op() {
  OpEntry entry{.op = "cumsum"};
  entry.run = [](const TensorList& in, const Json& args) {
    return TensorList{ops::cumsum(in[0], args["dim"])};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    const auto dim = from_front(args["dim"], in[0].shape.ndim());
    Array y = in[0];
    for_each_index(y.shape, [&](const Shape& i) {
      Shape before = i;
      if (--before[dim] >= 0) y[i] += y[before];
    });
    return Arrays{y};
  };
  const auto of = [](const std::string& what, const Shape& shape, std::int64_t dim,
                     bool large = false) {
    return OpSample{.what = what,
                    .inputs = {{.shape = shape}},
                    .args = {{"dim", dim}},
                    .differences = large ? Differences::kOneDirection : Differences::kEveryElement};
  };
  entry.samples = {of("rows", {3, 7}, -1),
                   of("columns", {4, 3}, 0),
                   of("the middle", {2, 4, 3}, 1),
                   of("two rows", {2, 3}, 0),
                   of("size one", {1}, 0),
                   of("nothing", {3, 0}, 1),
                   of("several pieces", {257, 90}, 1, true)};
  entry.errors =
      line_errors("cumsum", [](const Tensor& x, std::int64_t dim) { ops::cumsum(x, dim); });
  return entry;
}

}  // namespace

std::vector<OpEntry> statistics_entries() {
  return {variance_op("var", ops::var, false),
          variance_op("std", ops::std, true),
          whole_variance_op("var", ops::var, false),
          whole_variance_op("std", ops::std, true),
          logsumexp_op(),
          cumsum_op()};
}

}  // namespace moegrad::test
