// SPDX-License-Identifier: Apache-2.0
#include "ops/reduce.h"
#include "tests/ops/op_table_lines.h"
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
    return Arrays{fold_lines(in[0], args, fold)};
  };
  entry.samples = line_samples();
  entry.samples.push_back(line_sample("nothing", {0, 3}, 0, true));
  entry.errors = {integers(op, [function](const Tensor& x) { function(x, 0, false); }),
                  {"dimension out of range", [=, x = randn({2, 3})] { function(x, 2, false); },
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
  const auto call = [function](const std::vector<std::int64_t>& dims) {
    return [=] { function(randn({2, 3}), dims, false); };
  };
  entry.errors = {
      integers(op,
               [function](const Tensor& x) {
                 function(x, {0, 1}, false);
               }),
      {"no dimension", call({}), "ShapeError", op + ": dims must name at least one dimension"},
      {"a dimension twice", call({1, -1}), "ShapeError", op + ": dimension 1 is named twice"},
      {"dimension out of range", call({0, 2}), "ShapeError",
       op + ": dimension must be in [-2, 1], got 2"}};
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
