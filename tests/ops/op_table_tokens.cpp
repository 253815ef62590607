// SPDX-License-Identifier: Apache-2.0
// Shapes: T tokens, V vocabulary, H hidden, Nq query heads, Nkv key/value heads, D head dimension.
#include <cmath>

#include "ops/embedding.h"
#include "ops/rope.h"
#include "tests/ops/indices.h"
#include "tests/ops/op_table.h"
#include "tests/testing.h"

namespace moegrad::test {
namespace {

OpEntry embedding_op() {
  OpEntry entry{.op = "embedding", .dtypes = kReals};
  entry.run = [](const TensorList& in, const Json&) {
    return TensorList{ops::embedding(in[0], in[1])};
  };
  entry.reference = [](const Arrays& in, const Json&) {
    Shape shape = in[0].shape;
    shape.push_back(in[1].dim(1));
    Array y(shape);
    std::size_t at = 0;
    for (const auto id : in[0].values) {
      for (std::int64_t h = 0; h < in[1].dim(1); ++h) {
        y.values[at++] = in[1][{static_cast<std::int64_t>(id), h}];
      }
    }
    return Arrays{y};
  };
  const auto sample = [](const std::string& what, const Shape& ids, const Shape& weight,
                         bool large = false) {
    return OpSample{
        .what = what,
        .inputs = {{.shape = ids, .draw = Draw::kIndices, .bound = weight[0], .saved = true},
                   {.shape = weight}},
        .differences = large ? Differences::kOneDirection : Differences::kEveryElement};
  };
  entry.samples = {
      sample("tokens, some twice", {9}, {5, 3}), sample("a batch", {2, 3}, {7, 1}),
      sample("one token", {1}, {4, 2}),          sample("a scalar", {}, {3, 5}),
      sample("no tokens", {0}, {3, 2}),          sample("several pieces", {300}, {40, 700}, true)};
  const auto call = [](const Tensor& tokens, const Tensor& weight) {
    return [=] { ops::embedding(tokens, weight); };
  };
  entry.errors = {
      {"a weight that is no matrix", call(indices_of({0}), randn({3})), "ShapeError",
       "embedding: weight must be [V, H], got [3]"},
      {"ids that are no integers", call(randn({1}), randn({3, 2})), "DtypeError",
       "embedding: ids must be int64, got float64"},
      {"an integer weight", call(indices_of({0}), Tensor::zeros({3, 2}, Dtype::kInt64)),
       "DtypeError", "embedding: weight must be float32, float64 or bfloat16, got int64"},
      {"an id out of range", call(indices_of({0, 2, 3}), randn({3, 2})), "ValueError",
       "embedding: token id must be in [0, 3), got 3 at position 2"}};
  return entry;
}

// Row by row: the softmax over all keys of the document up to the query, then the weighted sum.
// Positions are integers; what is differentiated is rope.
OpEntry rope_table_op() {
  OpEntry entry{.op = "rope_table", .differentiable = false};
  entry.run = [](const TensorList& in, const Json& args) {
    const auto dtype = args["dtype"] == "float32" ? Dtype::kFloat32 : Dtype::kFloat64;
    const auto table = ops::rope_table(in[0], args["head_dim"], args["theta"], dtype);
    return TensorList{table.cos, table.sin};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    const std::int64_t half = args["head_dim"].get<std::int64_t>() / 2;
    Array cos({in[0].dim(0), half}), sin = cos;
    for_each_index(cos.shape, [&](const Shape& i) {
      const double power = static_cast<double>(i[1]) / static_cast<double>(half);
      const double angle = in[0][{i[0]}] / std::pow(args["theta"].get<double>(), power);
      cos[i] = std::cos(angle);
      sin[i] = std::sin(angle);
    });
    return Arrays{cos, sin};
  };
  const auto sample = [](const std::string& what, std::int64_t tokens, std::int64_t head_dim,
                         double theta, const std::string& dtype) {
    return OpSample{.what = what,
                    .inputs = {{.shape = {tokens}, .draw = Draw::kIndices, .bound = 500}},
                    .args = {{"head_dim", head_dim}, {"theta", theta}, {"dtype", dtype}}};
  };
  entry.samples = {sample("float64", 7, 8, 1e4, "float64"), sample("float32", 9, 6, 1e6, "float32"),
                   sample("one pair", 1, 2, 10, "float64"),
                   sample("no tokens", 0, 4, 1e4, "float64")};
  const auto table = [](const Tensor& positions, std::int64_t head_dim, double theta,
                        Dtype dtype = Dtype::kFloat32) {
    return [=] { ops::rope_table(positions, head_dim, theta, dtype); };
  };
  const Tensor positions = Tensor::zeros({3}, Dtype::kInt64);
  entry.errors = {{"a matrix of positions", table(Tensor::zeros({1, 3}, Dtype::kInt64), 4, 1e4),
                   "ShapeError", "rope_table: positions must be [T], got [1, 3]"},
                  {"positions that are no integers", table(randn({3}), 4, 1e4), "DtypeError",
                   "rope_table: positions must be int64, got float64"},
                  {"an odd head dimension", table(positions, 5, 1e4), "ValueError",
                   "rope_table: head_dim must be even and at least 2, got 5"},
                  {"theta of zero", table(positions, 4, 0), "ValueError",
                   "rope_table: theta must be positive, got 0"},
                  {"an integer table", table(positions, 4, 1e4, Dtype::kInt64), "DtypeError",
                   "arithmetic needs float32 or float64, got int64"}};
  return entry;
}

OpEntry rope_op() {
  OpEntry entry{.op = "rope"};
  entry.run = [](const TensorList& in, const Json&) {
    return TensorList{ops::rope(in[0], {.cos = in[1], .sin = in[2]})};
  };
  // Any two numbers stand for cosine and sine: the rotation is linear in x.
  entry.reference = [](const Arrays& in, const Json&) {
    const auto &x = in[0], &cos = in[1], &sin = in[2];
    const auto half = x.dim(2) / 2;
    Array y(x.shape);
    for_each_index({x.dim(0), x.dim(1), half}, [&](const Shape& at) {
      const auto t = at[0], n = at[1], i = at[2];
      y[{t, n, i}] = x[{t, n, i}] * cos[{t, i}] - x[{t, n, half + i}] * sin[{t, i}];
      y[{t, n, half + i}] = x[{t, n, half + i}] * cos[{t, i}] + x[{t, n, i}] * sin[{t, i}];
    });
    return Arrays{y};
  };
  const auto sample = [](const std::string& what, const Shape& shape, bool large = false) {
    const Input table{.shape = {shape[0], shape[2] / 2}, .has_gradient = false, .saved = true};
    return OpSample{.what = what,
                    .inputs = {{.shape = shape}, table, table},
                    .differences = large ? Differences::kOneDirection : Differences::kEveryElement};
  };
  entry.samples = {sample("odd sizes", {3, 5, 6}), sample("one pair", {4, 1, 2}),
                   sample("one token", {1, 2, 8}), sample("no tokens", {0, 2, 4}),
                   sample("no heads", {2, 0, 4}),  sample("several pieces", {200, 2, 18}, true)};
  const auto rope = [](const Shape& x, const Shape& cos, const Shape& sin,
                       Dtype dtype_of_sin = Dtype::kFloat64) {
    return [=] { ops::rope(randn(x), {.cos = randn(cos), .sin = randn(sin, 1, dtype_of_sin)}); };
  };
  entry.errors = {{"two dimensions", rope({3, 4}, {3, 2}, {3, 2}), "ShapeError",
                   "rope: x must be [T, N, D], got [3, 4]"},
                  {"an odd head dimension", rope({3, 1, 5}, {3, 2}, {3, 2}), "ShapeError",
                   "rope: the last dimension of x must be even, got [3, 1, 5]"},
                  {"a table that is too short", rope({3, 1, 4}, {3, 2}, {2, 2}), "ShapeError",
                   "rope: table must be [3, 2] to match x [3, 1, 4], got cos [3, 2] and "
                   "sin [2, 2]"},
                  {"mixed dtypes", rope({3, 1, 4}, {3, 2}, {3, 2}, Dtype::kFloat32), "DtypeError",
                   "rope: x is float64 but the table is float64 and float32"}};
  return entry;
}

OpEntry partial_rope_op() {
  OpEntry entry{.op = "partial_rope", .saved_by = "rope"};
  entry.run = [](const TensorList& in, const Json&) {
    return TensorList{ops::partial_rope(in[0], {.cos = in[1], .sin = in[2]})};
  };
  entry.reference = [](const Arrays& in, const Json&) {
    const auto &x = in[0], &cos = in[1], &sin = in[2];
    const auto half = cos.dim(1);
    Array y = x;
    for_each_index({x.dim(0), x.dim(1), half}, [&](const Shape& at) {
      const auto t = at[0], n = at[1], i = at[2];
      y[{t, n, i}] = x[{t, n, i}] * cos[{t, i}] - x[{t, n, half + i}] * sin[{t, i}];
      y[{t, n, half + i}] = x[{t, n, half + i}] * cos[{t, i}] + x[{t, n, i}] * sin[{t, i}];
    });
    return Arrays{y};
  };
  const auto sample = [](const std::string& what, const Shape& shape, std::int64_t rotated) {
    const Input table{.shape = {shape[0], rotated / 2}, .has_gradient = false, .saved = true};
    return OpSample{.what = what, .inputs = {{.shape = shape}, table, table}};
  };
  entry.samples = {sample("half of each head", {3, 2, 8}, 4),
                   sample("all", {3, 2, 4}, 4),
                   sample("an odd head dimension", {2, 1, 5}, 2),
                   sample("one token", {1, 2, 6}, 2),
                   sample("no tokens", {0, 2, 4}, 2),
                   sample("no heads", {2, 0, 4}, 2)};
  const auto refused = [&](const std::string& what, const Shape& x, const Shape& table,
                           const std::string& message) {
    entry.errors.push_back(
        {what, [=] { ops::partial_rope(randn(x), {.cos = randn(table), .sin = randn(table)}); },
         "ShapeError", message});
  };
  refused("two dimensions", {3, 4}, {3, 2}, "partial_rope: x must be [T, N, D], got [3, 4]");
  refused("a table that is too wide", {3, 1, 4}, {3, 3},
          "partial_rope: table must be [3, R/2] with R <= 4 to match x [3, 1, 4], got cos [3, 3]");
  refused("a table that is too short", {3, 1, 4}, {2, 1},
          "rope: table must be [3, 1] to match x [3, 1, 2], got cos [2, 1] and sin [2, 1]");
  entry.errors.push_back({"mixed dtypes",
                          [] {
                            ops::partial_rope(
                                randn({3, 1, 4}),
                                {.cos = randn({3, 1}), .sin = randn({3, 1}, 1, Dtype::kFloat32)});
                          },
                          "DtypeError", "rope: x is float64 but the table is float64 and float32"});
  return entry;
}

}  // namespace

std::vector<OpEntry> token_entries() {
  return {embedding_op(), rope_table_op(), rope_op(), partial_rope_op()};
}

}  // namespace moegrad::test
