// SPDX-License-Identifier: Apache-2.0
// Shapes: B batch, M rows, K reduction, N columns, E experts.
#include <algorithm>

#include "ops/grouped_matmul.h"
#include "ops/linear.h"
#include "ops/matmul.h"
#include "ops/matmul_reference.h"
#include "tests/ops/op_table.h"
#include "tests/testing.h"

namespace moegrad::test {
namespace {

using Product = Tensor (*)(const Tensor&, const Tensor&);

OpEntry matmul_op(const std::string& name, Product product) {
  OpEntry entry{.op = name};
  entry.run = [=](const TensorList& in, const Json&) { return TensorList{product(in[0], in[1])}; };
  entry.reference = [](const Arrays& in, const Json&) {
    Array a = in[0], b = in[1];
    const bool row = a.shape.ndim() == 1, column = b.shape.ndim() == 1;
    if (row) a.shape = {1, a.dim(0)};
    if (column) b.shape = {b.dim(0), 1};
    Shape shape, result;
    for (auto i = -std::max(a.shape.ndim(), b.shape.ndim()); i < -2; ++i) {
      const auto of_a = i < -a.shape.ndim() ? 1 : a.dim(i);
      const auto of_b = i < -b.shape.ndim() ? 1 : b.dim(i);
      shape.push_back(of_a == 1 ? of_b : of_a);
    }
    result = shape;
    if (!row) result.push_back(a.dim(-2));
    if (!column) result.push_back(b.dim(-1));
    shape.push_back(a.dim(-2));
    shape.push_back(b.dim(-1));
    Array c(shape);
    for_each_index(shape, [&](const Shape& i) {
      Shape of_a = i, of_b = i;
      for (std::int64_t k = 0; k < a.dim(-1); ++k) {
        of_a[-1] = k;
        of_b[-2] = k;
        c[i] += broadcast_at(a, of_a) * broadcast_at(b, of_b);
      }
    });
    c.shape = result;
    return Arrays{c};
  };
  const auto sample = [](const std::string& what, const Shape& a, const Shape& b) {
    return OpSample{.what = what,
                    .inputs = {{.shape = a, .saved = true}, {.shape = b, .saved = true}}};
  };
  entry.saved_by = name;
  entry.samples = {sample("matrices", {3, 5}, {5, 4}),
                   sample("batches", {2, 3, 4}, {2, 4, 5}),
                   sample("one left matrix for all", {3, 4}, {2, 4, 2}),
                   sample("one right matrix for all", {3, 2, 4}, {4, 3}),
                   sample("size one", {1, 1}, {1, 1}),
                   sample("no rows", {0, 3}, {3, 2}),
                   sample("no reduction", {2, 0}, {0, 3}),
                   sample("no batch", {0, 2, 3}, {3, 2})};
  const auto matmul = [=](const Tensor& a, const Tensor& b) { return [=] { product(a, b); }; };
  entry.errors = {
      {"a vector", matmul(randn({3}), randn({3, 2})), "ShapeError",
       name + ": operands must have 2 or 3 dimensions, got [3] and [3, 2]"},
      {"other inner sizes", matmul(randn({2, 3}), randn({2, 3})), "ShapeError",
       name + ": inner sizes must agree, got [2, 3] and [2, 3]"},
      {"other batches", matmul(randn({2, 3, 4}), randn({3, 4, 5})), "ShapeError",
       name + ": batch sizes must agree, got [2, 3, 4] and [3, 4, 5]"},
      {"mixed dtypes", matmul(randn({2, 2}), randn({2, 2}, 1, Dtype::kFloat32)), "DtypeError",
       name + ": needs two operands of float32 or of float64, got float64 and float32"}};
  return entry;
}

// matmul takes operands of any number of dimensions.
OpEntry with_broadcasting(OpEntry entry) {
  const auto add = [&](const std::string& what, const Shape& a, const Shape& b, bool a_saved,
                       bool b_saved) {
    entry.samples.push_back(
        {.what = what, .inputs = {{.shape = a, .saved = a_saved}, {.shape = b, .saved = b_saved}}});
  };
  add("two vectors", {5}, {5}, true, true);
  add("a row and a matrix", {3}, {3, 4}, true, true);
  add("a matrix and a column", {2, 3}, {3}, true, true);
  add("batches and a column", {2, 4, 3}, {3}, true, true);
  add("a batch of one", {2, 3, 4}, {1, 4, 5}, true, true);
  add("four dimensions", {2, 3, 2, 4}, {2, 3, 4, 3}, true, true);
  add("both repeat", {2, 1, 2, 4}, {3, 4, 3}, false, false);
  add("one right matrix for four dimensions", {2, 3, 2, 4}, {4, 3}, true, true);
  add("no batch of four dimensions", {0, 3, 2, 4}, {1, 1, 4, 3}, true, true);
  const auto matmul = [](const Tensor& a, const Tensor& b) { return [=] { ops::matmul(a, b); }; };
  entry.errors = {
      {"a scalar", matmul(randn({}), randn({1})), "ShapeError",
       "matmul: operands must have at least one dimension, got [] and [1]"},
      {"other inner sizes", matmul(randn({2, 3}), randn({2, 3})), "ShapeError",
       "matmul: inner sizes must agree, got [2, 3] and [2, 3]"},
      {"other inner sizes of four dimensions", matmul(randn({2, 2, 2, 3}), randn({2, 2, 2, 3})),
       "ShapeError", "matmul: inner sizes must agree, got [2, 2, 2, 3] and [2, 2, 2, 3]"},
      {"other batches", matmul(randn({2, 3, 4}), randn({3, 4, 5})), "ShapeError",
       "matmul: shapes [2] and [3] do not broadcast"},
      {"mixed dtypes", matmul(randn({2, 2}), randn({2, 2}, 1, Dtype::kFloat32)), "DtypeError",
       "matmul: needs two operands of float32 or of float64, got float64 and float32"}};
  return entry;
}

OpEntry linear_op() {
  OpEntry entry{.op = "linear", .dtypes = kReals};
  entry.run = [](const TensorList& in, const Json&) {
    return TensorList{ops::linear(in[0], in[1])};
  };
  entry.reference = [](const Arrays& in, const Json&) {
    const auto &x = in[0], &weight = in[1];
    Shape shape = x.shape;
    shape[-1] = weight.dim(0);
    Array y(shape);
    for_each_index(shape, [&](const Shape& i) {
      Shape from = i;
      for (std::int64_t k = 0; k < x.dim(-1); ++k) {
        from[-1] = k;
        y[i] += x[from] * weight[{i[-1], k}];
      }
    });
    return Arrays{y};
  };
  const auto sample = [](const std::string& what, const Shape& x, std::int64_t out,
                         bool large = false) {
    return OpSample{.what = what,
                    .inputs = {{.shape = x, .saved = true},
                               {.shape = {out, x[-1]}, .saved = true, .nz = Nz::kRead}},
                    .differences = large ? Differences::kOneDirection : Differences::kEveryElement};
  };
  entry.samples = {sample("a matrix", {3, 5}, 4),
                   sample("a batch", {2, 3, 4}, 5),
                   sample("a vector", {7}, 3),
                   sample("more than a tile", {7, 3}, 17),
                   sample("size one", {1, 1}, 1),
                   sample("no rows", {0, 3}, 2),
                   sample("no inputs", {2, 0}, 3),
                   sample("no outputs", {2, 3}, 0),
                   sample("several blocks", {260, 30}, 40, true)};
  const auto linear = [](const Tensor& x, const Tensor& weight) {
    return [=] { ops::linear(x, weight); };
  };
  entry.errors = {{"a scalar", linear(randn({}), randn({1, 1})), "ShapeError",
                   "linear: x needs a last dimension, got []"},
                  {"a weight that is no matrix", linear(randn({2, 3}), randn({3})), "ShapeError",
                   "linear: weight must be [out, in], got [3]"},
                  {"other sizes", linear(randn({2, 3}), randn({3, 2})), "ShapeError",
                   "linear: weight must be [out, 3] to match x [2, 3], got [3, 2]"},
                  {"integers", linear(Tensor::zeros({2, 3}, Dtype::kInt64), randn({2, 3})),
                   "DtypeError", "linear: x must be float32, float64 or bfloat16, got int64"},
                  {"mixed dtypes", linear(randn({2, 3}), randn({4, 3}, 1, Dtype::kFloat32)),
                   "DtypeError", "linear: x is float64 but weight is float32"}};
  return entry;
}

OpEntry grouped_matmul_op() {
  OpEntry entry{.op = "grouped_matmul",
                .parameters = "Tensor, Tensor, vector<int64>, bool",
                .dtypes = kReals};
  entry.run = [](const TensorList& in, const Json& args) {
    return TensorList{ops::grouped_matmul(in[0], in[1], integers_from(args["offsets"]),
                                          args["transpose_weight"])};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    const auto &x = in[0], &weight = in[1];
    const bool transposed = args["transpose_weight"];
    const auto offsets = integers_from(args["offsets"]);
    Array y({x.dim(0), weight.dim(transposed ? 1 : 2)});
    for (std::int64_t e = 0; e < weight.dim(0); ++e) {
      const auto at = static_cast<std::size_t>(e);
      for (auto m = offsets[at]; m < offsets[at + 1]; ++m) {
        for (std::int64_t n = 0; n < y.dim(1); ++n) {
          for (std::int64_t k = 0; k < x.dim(1); ++k) {
            y[{m, n}] += x[{m, k}] * (transposed ? weight[{e, n, k}] : weight[{e, k, n}]);
          }
        }
      }
    }
    return Arrays{y};
  };
  const auto sample = [](const std::string& what, std::int64_t k, std::int64_t n,
                         const std::vector<std::int64_t>& offsets, bool transposed,
                         bool large = false) {
    const auto experts = std::ssize(offsets) - 1;
    const Shape weight = transposed ? Shape{experts, n, k} : Shape{experts, k, n};
    return OpSample{.what = what,
                    .inputs = {{.shape = {offsets.back(), k}, .saved = true},
                               {.shape = weight, .saved = true, .nz = Nz::kRead}},
                    .args = {{"offsets", offsets}, {"transpose_weight", transposed}},
                    .differences = large ? Differences::kOneDirection : Differences::kEveryElement};
  };
  entry.samples = {sample("three experts", 5, 4, {0, 2, 5, 6}, false),
                   sample("three experts, transposed", 5, 4, {0, 2, 5, 6}, true),
                   sample("experts without rows", 3, 2, {0, 0, 3, 3, 4, 4}, false),
                   sample("experts without rows, transposed", 3, 2, {0, 0, 3, 3}, true),
                   sample("more than a tile", 3, 17, {0, 7, 8}, false),
                   sample("more than a tile, transposed", 17, 3, {0, 7, 8}, true),
                   sample("size one", 1, 1, {0, 1}, false),
                   sample("no rows", 3, 2, {0, 0, 0}, false),
                   sample("no reduction", 0, 2, {0, 1, 3}, false),
                   sample("no columns", 3, 0, {0, 1, 3}, false),
                   sample("several blocks", 20, 40, {0, 150, 150, 260}, false, true)};
  const auto grouped = [](const Tensor& x, const Tensor& weight,
                          const std::vector<std::int64_t>& offsets, bool transposed = false) {
    return [=] { ops::grouped_matmul(x, weight, offsets, transposed); };
  };
  entry.errors = {
      {"x of another rank", grouped(randn({4}), randn({1, 4, 2}), {0, 1}), "ShapeError",
       "grouped_matmul: x must be [M, K], got [4]"},
      {"a weight of another rank", grouped(randn({3, 4}), randn({4}), {0, 3}), "ShapeError",
       "grouped_matmul: weight must be [E, K, N] or [E * K, N], got [4]"},
      {"a stacked weight of another height", grouped(randn({3, 4}), randn({7, 2}), {0, 1, 3}),
       "ShapeError",
       "grouped_matmul: weight must be [E, K, N] or [E * K, N] with K = 4 and E = 2 to match x "
       "[3, 4], got [7, 2]"},
      {"other sizes", grouped(randn({3, 4}), randn({1, 4, 2}), {0, 3}, true), "ShapeError",
       "grouped_matmul: weight must be [E, N, K] or [E * N, K] with K = 4 to match x [3, 4], got "
       "[1, 4, 2]"},
      {"blocks of another shape",
       grouped(randn({3, 4}), Tensor::empty_nz({2, 4, 3}, {1, 8, 3}, Dtype::kFloat64), {0, 1, 3}),
       "LayoutError",
       "grouped_matmul: weight [2, 4, 3] must be FRACTAL_NZ blocks of that shape, got "
       "blocks of [1, 8, 3]"},
      {"too few offsets", grouped(randn({3, 4}), randn({2, 4, 2}), {0, 3}), "ValueError",
       "grouped_matmul: offsets must have 3 entries (experts + 1), got 2"},
      {"offsets that start late", grouped(randn({3, 4}), randn({2, 4, 2}), {1, 2, 3}), "ValueError",
       "grouped_matmul: offsets must start at 0, got 1"},
      {"offsets that decrease", grouped(randn({3, 4}), randn({2, 4, 2}), {0, 4, 3}), "ValueError",
       "grouped_matmul: offsets must not decrease, got 4 then 3 for expert 1"},
      {"offsets that end early", grouped(randn({3, 4}), randn({2, 4, 2}), {0, 1, 2}), "ValueError",
       "grouped_matmul: offsets must end at the 3 rows of x, got 2"},
      {"integers", grouped(Tensor::zeros({1, 2}, Dtype::kInt64), randn({1, 2, 2}), {0, 1}),
       "DtypeError", "grouped_matmul: x must be float32, float64 or bfloat16, got int64"},
      {"mixed dtypes", grouped(randn({1, 2}), randn({1, 2, 2}, 1, Dtype::kFloat32), {0, 1}),
       "DtypeError", "grouped_matmul: x is float64 but weight is float32"}};
  return entry;
}

}  // namespace

std::vector<OpEntry> product_entries() {
  return {with_broadcasting(matmul_op("matmul", ops::matmul)),
          matmul_op("matmul_reference", ops::matmul_reference), linear_op(), grouped_matmul_op()};
}

}  // namespace moegrad::test
