// SPDX-License-Identifier: Apache-2.0
// Shapes: E experts, M rows, K reduction, N columns.
#include "ops/compat/npu_grouped_matmul.h"
#include "ops/npu_gmm.h"
#include "ops/views.h"
#include "tests/ops/op_table.h"
#include "tests/testing.h"

namespace moegrad::test {
namespace {

// y[rows of e] += x[rows of e] W_e, rows from `begin` to `end`.
void multiply(const Array& x, const std::function<double(std::int64_t, std::int64_t)>& weight,
              std::int64_t begin, std::int64_t end, Array& y) {
  for (auto m = begin; m < end; ++m) {
    for (std::int64_t n = 0; n < y.dim(1); ++n) {
      for (std::int64_t k = 0; k < x.dim(1); ++k) y[{m, n}] += x[{m, k}] * weight(k, n);
    }
  }
}

OpEntry npu_gmm_op() {
  OpEntry entry{.op = "npu_gmm", .parameters = "Tensor, Tensor, vector<int64>", .dtypes = kReals};
  entry.run = [](const TensorList& in, const Json& args) {
    return TensorList{ops::npu_gmm(in[0], in[1], integers_from(args["tokens_per_expert"]))};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    const auto &weight = in[0], &x = in[1];
    const bool flat = weight.shape.ndim() == 2;
    Array y({x.dim(0), weight.dim(-1)});
    std::int64_t begin = 0, e = 0;
    for (const auto count : integers_from(args["tokens_per_expert"])) {
      const auto element = [&](std::int64_t k, std::int64_t n) {
        return flat ? weight[{e * x.dim(1) + k, n}] : weight[{e, k, n}];
      };
      multiply(x, element, begin, begin + count, y);
      begin += count;
      ++e;
    }
    return Arrays{y};
  };
  const auto sample = [](const std::string& what, std::int64_t k, std::int64_t n,
                         const std::vector<std::int64_t>& counts, bool flat, bool large = false) {
    const auto experts = std::ssize(counts);
    std::int64_t rows = 0;
    for (const auto count : counts) rows += count;
    const Shape weight = flat ? Shape{experts * k, n} : Shape{experts, k, n};
    return OpSample{
        .what = what,
        .inputs = {{.shape = weight, .saved = true, .nz = flat ? Nz::kRefused : Nz::kRead},
                   {.shape = {rows, k}, .saved = true}},
        .args = {{"tokens_per_expert", counts}},
        .differences = large ? Differences::kOneDirection : Differences::kEveryElement};
  };
  entry.samples = {sample("stacked", 5, 4, {2, 3, 1}, false),
                   sample("flat", 5, 4, {2, 3, 1}, true),
                   sample("experts without rows", 3, 2, {0, 3, 0, 1, 0}, false),
                   sample("more than a tile", 17, 18, {7, 1}, false),
                   sample("size one", 1, 1, {1}, false),
                   sample("no rows", 3, 2, {0, 0}, false),
                   sample("several blocks", 20, 40, {150, 0, 110}, true, true)};
  const auto gmm = [](const Tensor& weight, const Tensor& x,
                      const std::vector<std::int64_t>& counts) {
    return [=] { ops::npu_gmm(weight, x, counts); };
  };
  entry.errors = {
      {"x of another rank", gmm(randn({2, 3, 4}), randn({3}), {0, 1}), "ShapeError",
       "npu_gmm: x must be [M, K], got [3]"},
      {"a weight of another rank", gmm(randn({4}), randn({5, 3}), {2, 3}), "ShapeError",
       "npu_gmm: weight must be [E, K, N] or [E * K, N], got [4]"},
      {"other sizes", gmm(randn({2, 4, 4}), randn({5, 3}), {2, 3}), "ShapeError",
       "npu_gmm: weight must be [2, 3, N] or [6, N] for 2 experts and x [5, 3], got [2, "
       "4, 4]"},
      {"blocks of another shape",
       gmm(Tensor::empty_nz({2, 3, 4}, {1, 6, 4}, Dtype::kFloat64), randn({5, 3}), {0, 0}),
       "LayoutError", "npu_gmm: weight must be blocks of [2, 3, 4], got blocks of [1, 6, 4]"},
      {"a negative count", gmm(randn({2, 3, 4}), randn({5, 3}), {6, -1}), "ValueError",
       "npu_gmm: tokens_per_expert must not be negative, got -1 for expert 1"},
      {"mixed dtypes", gmm(randn({2, 3, 4}, 1, Dtype::kFloat32), randn({0, 3}), {0, 0}),
       "DtypeError", "npu_gmm: x is float64 but weight is float32"},
      {"counts of too few rows", gmm(randn({2, 3, 4}), randn({5, 3}), {2, 2}), "ValueError",
       "npu_gmm: tokens_per_expert must add up to the 5 rows of x, got 4"}};
  return entry;
}

// --- the general form: the tensors of x, then those of weight, then group_list if it is a tensor

struct Groups {
  std::vector<std::int64_t> experts, ends;
};

Groups groups_of(const Arrays& in, const Json& args) {
  Groups groups;
  const auto given = args["x"].get<std::size_t>() + args["weights"].get<std::size_t>();
  std::vector<std::int64_t> list;
  if (args.contains("group_list")) list = integers_from(args["group_list"]);
  if (in.size() > given) {
    for (const auto value : in.back().values) list.push_back(static_cast<std::int64_t>(value));
  }
  const int type = args["group_list_type"];
  std::int64_t end = 0;
  for (std::size_t i = 0; i < list.size(); i += type == 2 ? 2 : 1) {
    end = type == 0 ? list[i] : end + list[type == 2 ? i + 1 : i];
    groups.experts.push_back(type == 2 ? list[i] : static_cast<std::int64_t>(i));
    groups.ends.push_back(end);
  }
  return groups;
}

Arrays npu_reference(const Arrays& in, const Json& args) {
  const auto x_count = args["x"].get<std::size_t>(), weights = args["weights"].get<std::size_t>();
  const int group_type = args["group_type"];
  const bool transposed = args["transpose_weight"];
  const auto weight_of = [&](std::size_t e, std::int64_t k, std::int64_t n) {
    const auto row = transposed ? n : k, column = transposed ? k : n;
    const bool is_stack = in[x_count].shape.ndim() == 3;
    return is_stack ? in[x_count][{static_cast<std::int64_t>(e), row, column}]
                    : in[x_count + (weights == 1 ? 0 : e)][{row, column}];
  };
  const auto columns = [&](std::size_t i) { return in[x_count + i].dim(transposed ? -2 : -1); };
  const auto groups = groups_of(in, args);
  if (group_type == 2) {  // in[0] is [K, M], in[1] [K, N]
    Array y({std::ssize(groups.ends), in[0].dim(1), in[1].dim(1)});
    std::int64_t begin = 0;
    for (std::int64_t e = 0; e < y.dim(0); ++e) {
      const auto end = groups.ends[static_cast<std::size_t>(e)];
      for_each_index({y.dim(1), y.dim(2)}, [&](const Shape& i) {
        for (auto k = begin; k < end; ++k)
          y[{e, i[0], i[1]}] += in[0][{k, i[0]}] * in[1][{k, i[1]}];
      });
      begin = end;
    }
    return {y};
  }
  Arrays products;
  if (x_count > 1 || group_type == -1) {
    for (std::size_t i = 0; i < x_count; ++i) {
      products.emplace_back(Shape{in[i].dim(0), columns(i)});
      multiply(
          in[i], [&](auto k, auto n) { return weight_of(i, k, n); }, 0, in[i].dim(0), products[i]);
    }
    if (group_type == -1) return products;
    Array all({0, columns(0)});
    for (const auto& product : products) {
      all.shape[0] += product.dim(0);
      all.values.insert(all.values.end(), product.values.begin(), product.values.end());
    }
    return {all};
  }
  Array y({in[0].dim(0), columns(0)});
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < groups.ends.size(); ++i) {
    const auto e = static_cast<std::size_t>(groups.experts[i]);
    multiply(
        in[0], [&](auto k, auto n) { return weight_of(e, k, n); }, begin, groups.ends[i], y);
    begin = groups.ends[i];
  }
  return {y};
}

TensorList run_npu_grouped_matmul(const TensorList& in, const Json& args) {
  const auto x_count = args["x"].get<std::ptrdiff_t>();
  const auto given = x_count + args["weights"].get<std::ptrdiff_t>();
  TensorList x(in.begin(), in.begin() + x_count), weight(in.begin() + x_count, in.begin() + given);
  if (args["group_type"] == 2) x[0] = ops::transpose(x[0], 0, 1);
  ops::NpuGroupedMatmulOptions options{.group_type = args["group_type"],
                                       .group_list_type = args["group_list_type"],
                                       .split_item = args["split_item"],
                                       .transpose_weight = args["transpose_weight"]};
  if (args.contains("group_list")) options.group_list = integers_from(args["group_list"]);
  if (std::ssize(in) > given) options.group_list = in.back();
  return ops::npu_grouped_matmul(x, weight, options);
}

OpSample npu_sample(const std::string& what, const std::vector<Shape>& x,
                    const std::vector<Shape>& weights, const Json& args) {
  OpSample made{.what = what,
                .args = {{"x", x.size()},
                         {"weights", weights.size()},
                         {"group_type", 0},
                         {"group_list_type", 0},
                         {"split_item", 2},
                         {"transpose_weight", false}}};
  made.args.update(args);
  const bool columns = made.args["group_type"] == 2;
  for (const auto& shape : x) {
    made.inputs.push_back({.shape = shape, .strides = Strides::kContiguousOnly});
  }
  for (const auto& shape : weights) {
    made.inputs.push_back({.shape = shape,
                           .strides = Strides::kContiguousOnly,
                           .nz = columns ? Nz::kRefused : Nz::kRead});
  }
  return made;
}

OpSample with_list(OpSample made, const Shape& shape, const std::vector<double>& list, int type) {
  made.inputs.push_back({.shape = shape, .draw = Draw::kIndices, .given = list});
  made.args["group_list_type"] = type;
  return made;
}

OpEntry npu_grouped_matmul_op() {
  OpEntry entry{.op = "npu_grouped_matmul", .differentiable = false};
  entry.run = run_npu_grouped_matmul;
  entry.reference = npu_reference;
  const Json pairs{{"group_type", -1}, {"split_item", 0}}, columns{{"group_type", 2}};
  const std::vector<Shape> x{{7, 5}}, stack{{3, 5, 4}};
  entry.samples = {
      npu_sample("pairs", {{3, 5}, {2, 7}}, {{5, 4}, {7, 6}}, pairs),
      npu_sample("rows, a list of ends", x, stack, {{"group_list", {2, 2, 7}}}),
      npu_sample("transposed weights", x, {{3, 4, 5}},
                 {{"group_list", {1, 3, 7}}, {"transpose_weight", true}}),
      with_list(npu_sample("rows, a tensor of ends", x, stack, Json::object()), {3}, {0, 4, 7}, 0),
      with_list(npu_sample("rows, counts", x, stack, {{"split_item", 3}}), {3}, {2, 0, 5}, 1),
      with_list(npu_sample("rows, experts and counts", x, stack, Json::object()), {2, 2},
                {2, 3, 0, 4}, 2),
      npu_sample("a list of weights", x, {{5, 4}, {5, 4}}, {{"group_list", {3, 7}}}),
      npu_sample("lists into one result", {{3, 5}, {2, 5}}, {{5, 4}, {5, 4}}, Json::object()),
      with_list(npu_sample("groups of the reduction", {{7, 3}}, {{7, 4}}, columns), {3}, {3, 0, 4},
                1),
      npu_sample("groups of the reduction, ends", {{6, 3}}, {{6, 2}},
                 {{"group_type", 2}, {"group_list", {0, 6}}}),
      npu_sample("no rows", {{0, 5}}, stack, {{"group_list", {0, 0, 0}}}),
      npu_sample("several blocks", {{260, 20}}, {{2, 20, 40}}, {{"group_list", {150, 260}}})};
  const auto call = [](const TensorList& tensors, const TensorList& weight,
                       const ops::NpuGroupedMatmulOptions& options) {
    return [=] { ops::npu_grouped_matmul(tensors, weight, options); };
  };
  const std::vector<std::int64_t> ends{3, 7};
  const ops::NpuGroupedMatmulOptions rows{.group_list = ends, .group_type = 0, .split_item = 2};
  entry.errors = {
      {"no x", call({}, {randn({5, 4})}, {}), "ValueError",
       "npu_grouped_matmul: x must not be an empty list"},
      {"groups of columns",
       call({randn({7, 5})}, {randn({2, 5, 4})}, {.group_type = 1, .split_item = 2}), "ValueError",
       "npu_grouped_matmul: group_type must be -1, 0 or 2, got 1 (groups of columns are "
       "not supported)"},
      {"no group list",
       call({randn({7, 5})}, {randn({2, 5, 4})}, {.group_type = 0, .split_item = 2}), "ValueError",
       "npu_grouped_matmul: group_list is required for group_type 0"},
      {"groups of too few rows", call({randn({8, 5})}, {randn({2, 5, 4})}, rows), "ValueError",
       "npu_grouped_matmul: groups must add up to the 8 rows of x, got 7"},
      {"other sizes", call({randn({7, 5})}, {randn({2, 6, 4})}, rows), "ShapeError",
       "npu_grouped_matmul: weight must be [5, N] per expert to match x [7, 5], got [6, "
       "4]"},
      {"integers", call({Tensor::zeros({7, 5}, Dtype::kInt64)}, {randn({2, 5, 4})}, rows),
       "DtypeError", "npu_grouped_matmul: x must be float32 or float64, got int64"},
      {"x in blocks", call({as_nz(randn({7, 5}))}, {randn({2, 5, 4})}, rows), "LayoutError",
       "npu_grouped_matmul: x must be row-major ND, got FRACTAL_NZ"}};
  return entry;
}

}  // namespace

std::vector<OpEntry> npu_entries() { return {npu_gmm_op(), npu_grouped_matmul_op()}; }

}  // namespace moegrad::test
