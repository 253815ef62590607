// SPDX-License-Identifier: Apache-2.0
#include "ops/reduce.h"
#include "tests/ops/op_table.h"
#include "tests/testing.h"

namespace moegrad::test {
namespace {

// The elements of one result, folded.
using Fold = double (*)(const std::vector<double>&);

double sum_of(const std::vector<double>& values) {
  double sum = 0;
  for (const auto value : values) sum += value;
  return sum;
}

double mean_of(const std::vector<double>& values) {
  return sum_of(values) / static_cast<double>(values.size());
}

OpError integers(const std::string& op, std::function<void(const Tensor&)> call) {
  return {"integers",
          [call] {
            call(Tensor::zeros({2, 3}, Dtype::kInt64));
          },
          "DtypeError", op + ": needs float32 or float64, got int64"};
}

OpEntry whole_entry(const std::string& op, Tensor (*function)(const Tensor&), Fold fold) {
  OpEntry entry{.op = op, .parameters = "Tensor"};
  entry.run = [function](const TensorList& in, const Json&) { return TensorList{function(in[0])}; };
  entry.reference = [fold](const Arrays& in, const Json&) {
    return Arrays{Array({}, fold(in[0].values))};
  };
  entry.samples = {{.what = "odd sizes", .inputs = {{.shape = {3, 7}}}},
                   {.what = "three dimensions", .inputs = {{.shape = {2, 3, 5}}}},
                   {.what = "a scalar", .inputs = {{.shape = {}}}},
                   {.what = "nothing", .inputs = {{.shape = {0, 3}}}},
                   {.what = "several pieces",
                    .inputs = {{.shape = {130, 257}}},
                    .differences = Differences::kOneDirection}};
  entry.errors = {integers(op, function)};
  return entry;
}

using DimFunction = Tensor (*)(const Tensor&, std::int64_t, bool);

OpEntry dim_entry(const std::string& op, const std::string& parameters, DimFunction function,
                  Fold fold) {
  OpEntry entry{.op = op, .parameters = parameters};
  entry.run = [function](const TensorList& in, const Json& args) {
    return TensorList{function(in[0], args["dim"], args["keepdim"])};
  };
  entry.reference = [fold](const Arrays& in, const Json& args) {
    const auto& x = in[0];
    const auto dim = from_front(args["dim"], x.shape.ndim());
    Shape kept = x.shape, removed;
    kept[dim] = 1;
    for (std::int64_t i = 0; i < x.shape.ndim(); ++i) {
      if (i != dim) removed.push_back(x.dim(i));
    }
    Array y(kept);
    for_each_index(kept, [&](Shape i) {
      std::vector<double> values;
      const Shape to = i;
      for (i[dim] = 0; i[dim] < x.dim(dim); ++i[dim]) values.push_back(x[i]);
      y[to] = fold(values);
    });
    if (!args["keepdim"].get<bool>()) y.shape = removed;
    return Arrays{y};
  };
  const auto sample = [](const std::string& what, const Shape& shape, std::int64_t dim,
                         bool keepdim, bool large = false) {
    return OpSample{.what = what,
                    .inputs = {{.shape = shape}},
                    .args = {{"dim", dim}, {"keepdim", keepdim}},
                    .differences = large ? Differences::kOneDirection : Differences::kEveryElement};
  };
  entry.samples = {sample("rows", {3, 7}, -1, false),
                   sample("columns", {3, 7}, 0, true),
                   sample("the middle", {2, 3, 5}, 1, false),
                   sample("the middle, kept", {2, 3, 5}, -2, true),
                   sample("size one", {1}, 0, false),
                   sample("no results", {0, 3}, 1, false),
                   sample("several pieces of rows", {257, 130}, 1, false, true),
                   sample("several pieces of columns", {130, 600}, 0, false, true)};
  entry.samples.push_back(sample("nothing", {0, 3}, 0, true));
  entry.errors = {integers(op, [function](const Tensor& x) { function(x, 0, false); }),
                  {"dimension out of range",
                   [function] {
                     function(randn({2, 3}), 2, false);
                   },
                   "ShapeError", op + ": dimension must be in [-2, 1], got 2"}};
  return entry;
}

using DimsFunction = Tensor (*)(const Tensor&, const std::vector<std::int64_t>&, bool);

OpEntry dims_entry(const std::string& op, DimsFunction function, Fold fold) {
  OpEntry entry{.op = op, .parameters = "Tensor, vector<int64>, bool"};
  entry.run = [function](const TensorList& in, const Json& args) {
    return TensorList{function(in[0], integers_from(args["dim"]), args["keepdim"])};
  };
  entry.reference = [fold](const Arrays& in, const Json& args) {
    const auto& x = in[0];
    std::vector<bool> reduced(static_cast<std::size_t>(x.shape.ndim()));
    for (const auto dim : integers_from(args["dim"])) {
      reduced[static_cast<std::size_t>(from_front(dim, x.shape.ndim()))] = true;
    }
    Shape kept, removed, within;
    for (std::int64_t i = 0; i < x.shape.ndim(); ++i) {
      const bool gone = reduced[static_cast<std::size_t>(i)];
      kept.push_back(gone ? 1 : x.dim(i));
      within.push_back(gone ? x.dim(i) : 1);
      if (!gone) removed.push_back(x.dim(i));
    }
    Array y(kept);
    for_each_index(kept, [&](const Shape& i) {
      std::vector<double> values;
      for_each_index(within, [&](const Shape& j) {
        Shape at = i;
        for (std::int64_t d = 0; d < at.ndim(); ++d) at[d] += j[d];
        values.push_back(x[at]);
      });
      y[i] = fold(values);
    });
    if (!args["keepdim"].get<bool>()) y.shape = removed;
    return Arrays{y};
  };
  const auto sample = [](const std::string& what, const Shape& shape,
                         const std::vector<std::int64_t>& dims, bool keepdim) {
    return OpSample{
        .what = what, .inputs = {{.shape = shape}}, .args = {{"dim", dims}, {"keepdim", keepdim}}};
  };
  entry.samples = {sample("all", {3, 7}, {0, 1}, false),
                   sample("the outer ones", {2, 3, 5}, {-1, 0}, false),
                   sample("the first ones, kept", {2, 3, 5}, {0, 1}, true),
                   sample("one", {2, 3}, {1}, false),
                   sample("size one", {1, 1}, {1, 0}, true),
                   sample("no results", {0, 3, 2}, {1, 2}, false)};
  entry.errors = {integers(op,
                           [function](const Tensor& x) {
                             function(x, {0, 1}, false);
                           }),
                  {"no dimension",
                   [function] {
                     function(randn({2, 3}), {}, false);
                   },
                   "ShapeError", op + ": dims must name at least one dimension"},
                  {"a dimension twice",
                   [function] {
                     function(randn({2, 3}), {1, -1}, false);
                   },
                   "ShapeError", op + ": dimension 1 is named twice"},
                  {"dimension out of range",
                   [function] {
                     function(randn({2, 3}), {0, 2}, false);
                   },
                   "ShapeError", op + ": dimension must be in [-2, 1], got 2"}};
  return entry;
}

}  // namespace

std::vector<OpEntry> reduction_entries() {
  constexpr auto* kDimParameters = "Tensor, int64, bool";
  const DimFunction sum = ops::sum, mean = ops::mean;
  return {whole_entry("sum", ops::sum, sum_of),
          whole_entry("mean", ops::mean, mean_of),
          dim_entry("sum", kDimParameters, sum, sum_of),
          dim_entry("mean", kDimParameters, mean, mean_of),
          dims_entry("sum", ops::sum, sum_of),
          dims_entry("mean", ops::mean, mean_of)};
}

}  // namespace moegrad::test
