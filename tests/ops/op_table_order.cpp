// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "ops/order.h"
#include "tests/ops/op_table_lines.h"
#include "tests/testing.h"

namespace moegrad::test {
namespace {

using Pick = ops::ValuesAndIndices;

TensorList listed(const Pick& pick) { return {pick.values, pick.indices}; }

// The values and positions of the first k elements along `dim`, equal ones by position.
Arrays first_in_order(const Array& x, std::int64_t dim, std::int64_t k, bool descending) {
  Shape shape = x.shape;
  shape[dim] = k;
  Arrays result{Array(shape), Array(shape)};
  Shape lines = x.shape;
  lines[dim] = 1;
  for_each_index(lines, [&](Shape i) {
    std::vector<double> line;
    for (i[dim] = 0; i[dim] < x.dim(dim); ++i[dim]) line.push_back(x[i]);
    std::vector<std::size_t> order(line.size());
    std::iota(order.begin(), order.end(), 0U);
    std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
      return descending ? line[a] > line[b] : line[a] < line[b];
    });
    for (std::int64_t j = 0; j < k; ++j) {
      i[dim] = j;
      const auto at = order[static_cast<std::size_t>(j)];
      result[0][i] = line[at];
      result[1][i] = static_cast<double>(at);
    }
  });
  return result;
}

std::vector<OpError> common_errors(const std::string& op,
                                   const std::function<void(const Tensor&, std::int64_t)>& call) {
  return {{"masks", [call] { call(Tensor::zeros({2}, Dtype::kBool), 0); }, "DtypeError",
           op + ": needs float32, float64 or int64, got bool"},
          {"a dimension out of range",
           [call] {
             call(randn({2, 3}), 2);
           },
           "ShapeError", op + ": dimension must be in [-2, 1], got 2"}};
}

// Elements of which some are equal where `given` is.
std::vector<OpSample> reduction_samples() {
  auto samples = line_samples();
  auto equal = line_sample("equal ones", {2, 4}, 1, false);
  equal.inputs[0].given = {1, 3, 3, -2, -2, 0, -2, 0};
  equal.differences = Differences::kNone;
  samples.push_back(equal);
  return samples;
}

Arrays extreme_reference(const Array& x, const Json& args, bool largest) {
  const auto dim = from_front(args["dim"], x.shape.ndim());
  auto result = first_in_order(x, dim, 1, largest);
  if (args["keepdim"].get<bool>()) return result;
  Shape removed;
  for (std::int64_t i = 0; i < x.shape.ndim(); ++i) {
    if (i != dim) removed.push_back(x.dim(i));
  }
  for (auto& array : result) array.shape = removed;
  return result;
}

OpError empty_error(const std::string& op, const std::function<void(const Tensor&)>& call) {
  return {"an empty dimension",
          [call] {
            call(Tensor::zeros({0, 3}));
          },
          "ShapeError", op + ": dimension 0 of [0, 3] must not be empty"};
}

OpEntry extreme_op(const std::string& op, Pick (*function)(const Tensor&, std::int64_t, bool),
                   bool largest) {
  OpEntry entry{.op = op,
                .parameters = "Tensor, int64, bool",
                .dtypes = kOrderedDtypes,
                .saved_outputs = {1}};
  entry.run = [function](const TensorList& in, const Json& args) {
    return listed(function(in[0], args["dim"], args["keepdim"]));
  };
  entry.reference = [largest](const Arrays& in, const Json& args) {
    return extreme_reference(in[0], args, largest);
  };
  entry.samples = reduction_samples();
  entry.errors =
      common_errors(op, [function](const Tensor& x, std::int64_t dim) { function(x, dim, false); });
  entry.errors.push_back(empty_error(op, [function](const Tensor& x) { function(x, 0, false); }));
  return entry;
}

OpEntry arg_extreme_op(const std::string& op, Tensor (*function)(const Tensor&, std::int64_t, bool),
                       bool largest) {
  OpEntry entry{.op = op,
                .parameters = "Tensor, int64, bool",
                .dtypes = kOrderedDtypes,
                .differentiable = false};
  entry.run = [function](const TensorList& in, const Json& args) {
    return TensorList{function(in[0], args["dim"], args["keepdim"])};
  };
  entry.reference = [largest](const Arrays& in, const Json& args) {
    return Arrays{extreme_reference(in[0], args, largest)[1]};
  };
  entry.samples = reduction_samples();
  entry.errors =
      common_errors(op, [function](const Tensor& x, std::int64_t dim) { function(x, dim, false); });
  entry.errors.push_back(empty_error(op, [function](const Tensor& x) { function(x, 0, false); }));
  return entry;
}

// The extreme of all elements: the value, or with `position` where it is.
OpEntry whole_extreme_op(const std::string& op, Tensor (*function)(const Tensor&), bool largest,
                         bool position) {
  OpEntry entry{
      .op = op, .parameters = "Tensor", .dtypes = kOrderedDtypes, .differentiable = !position};
  entry.run = [function](const TensorList& in, const Json&) { return TensorList{function(in[0])}; };
  entry.reference = [largest, position](const Arrays& in, const Json&) {
    Array row = in[0];
    row.shape = {in[0].shape.numel()};
    auto found = first_in_order(row, 0, 1, largest)[position ? 1 : 0];
    found.shape = {};
    return Arrays{found};
  };
  entry.samples = {{.what = "a matrix", .inputs = {{.shape = {3, 7}}}},
                   {.what = "three dimensions", .inputs = {{.shape = {2, 3, 5}}}},
                   {.what = "a scalar", .inputs = {{.shape = {}}}},
                   {.what = "size one", .inputs = {{.shape = {1, 1}}}},
                   {.what = "equal ones",
                    .inputs = {{.shape = {2, 3}, .given = {1, 3, 3, -2, -2, 0}}},
                    .differences = Differences::kNone},
                   {.what = "several pieces",
                    .inputs = {{.shape = {130, 257}}},
                    .differences = Differences::kOneDirection}};
  for (auto& sample : entry.samples) sample.inputs[0].nz = Nz::kOtherShapeOnly;
  entry.errors = {{"masks", [function] { function(Tensor::zeros({2}, Dtype::kBool)); },
                   "DtypeError", op + ": needs float32, float64 or int64, got bool"},
                  {"nothing",
                   [function] {
                     function(Tensor::zeros({0, 3}));
                   },
                   "ShapeError", op + ": needs at least one element, got [0, 3]"}};
  return entry;
}

OpEntry topk_op() {
  OpEntry entry{.op = "topk", .dtypes = kOrderedDtypes, .saved_outputs = {1}};
  entry.run = [](const TensorList& in, const Json& args) {
    return listed(ops::topk(in[0], args["k"], args["dim"], args["largest"]));
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    return first_in_order(in[0], from_front(args["dim"], in[0].shape.ndim()), args["k"],
                          args["largest"]);
  };
  const auto sample = [](const std::string& what, const Shape& shape, std::int64_t k,
                         std::int64_t dim, bool largest, bool large = false) {
    return OpSample{.what = what,
                    .inputs = {{.shape = shape}},
                    .args = {{"k", k}, {"dim", dim}, {"largest", largest}},
                    .differences = large ? Differences::kOneDirection : Differences::kEveryElement};
  };
  entry.samples = {sample("rows", {3, 7}, 3, -1, true),
                   sample("the smallest of columns", {5, 3}, 2, 0, false),
                   sample("the middle", {2, 5, 3}, 2, 1, true),
                   sample("all", {2, 4}, 4, 1, false),
                   sample("none", {2, 3}, 0, 1, true),
                   sample("size one", {1}, 1, 0, true),
                   sample("no rows", {0, 3}, 2, 1, true),
                   sample("several pieces", {257, 130}, 8, -1, true, true)};
  entry.errors =
      common_errors("topk", [](const Tensor& x, std::int64_t dim) { ops::topk(x, 1, dim); });
  entry.errors.push_back({"more than there are",
                          [] {
                            ops::topk(randn({2, 3}), 4);
                          },
                          "ValueError",
                          "topk: k must be in [0, 3] for dimension 1 of [2, 3], got 4"});
  entry.errors.push_back({"a negative number", [] { ops::topk(randn({2}), -1); }, "ValueError",
                          "topk: k must be in [0, 2] for dimension 0 of [2], got -1"});
  return entry;
}

OpEntry sort_op() {
  OpEntry entry{.op = "sort", .dtypes = kOrderedDtypes, .saved_outputs = {1}};
  entry.run = [](const TensorList& in, const Json& args) {
    return listed(ops::sort(in[0], args["dim"], args["descending"]));
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    const auto dim = from_front(args["dim"], in[0].shape.ndim());
    return first_in_order(in[0], dim, in[0].dim(dim), args["descending"]);
  };
  const auto sample = [](const std::string& what, const Shape& shape, std::int64_t dim,
                         bool descending, bool large = false) {
    return OpSample{.what = what,
                    .inputs = {{.shape = shape}},
                    .args = {{"dim", dim}, {"descending", descending}},
                    .differences = large ? Differences::kOneDirection : Differences::kEveryElement};
  };
  entry.samples = {sample("rows", {3, 7}, -1, false),
                   sample("columns", {5, 3}, 0, true),
                   sample("the middle", {2, 5, 3}, 1, false),
                   sample("size one", {1, 1}, 0, false),
                   sample("nothing", {2, 0}, 1, false),
                   sample("several pieces", {1300, 9}, 1, true, true)};
  auto equal = sample("equal ones keep their order", {2, 4}, 1, true);
  equal.inputs[0].given = {1, 3, 3, -2, -2, 0, -2, 0};
  equal.differences = Differences::kNone;
  entry.samples.push_back(equal);
  entry.errors =
      common_errors("sort", [](const Tensor& x, std::int64_t dim) { ops::sort(x, dim); });
  return entry;
}

}  // namespace

std::vector<OpEntry> order_entries() {
  return {extreme_op("max", ops::max, true),
          extreme_op("min", ops::min, false),
          arg_extreme_op("argmax", ops::argmax, true),
          arg_extreme_op("argmin", ops::argmin, false),
          whole_extreme_op("max", ops::max, true, false),
          whole_extreme_op("min", ops::min, false, false),
          whole_extreme_op("argmax", ops::argmax, true, true),
          whole_extreme_op("argmin", ops::argmin, false, true),
          topk_op(),
          sort_op()};
}

}  // namespace moegrad::test
