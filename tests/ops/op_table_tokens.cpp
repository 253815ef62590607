// SPDX-License-Identifier: Apache-2.0
// Shapes: T tokens, V vocabulary, H hidden, Nq query heads, Nkv key/value heads, D head dimension.
#include <cmath>

#include "ops/attention.h"
#include "ops/embedding.h"
#include "ops/rope.h"
#include "tests/ops/op_table.h"
#include "tests/testing.h"

namespace moegrad::test {
namespace {

OpEntry embedding_op() {
  OpEntry entry{.op = "embedding"};
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
  const auto ids = [](const std::vector<std::int64_t>& values) {
    return Tensor::from(values, {std::ssize(values)});
  };
  entry.errors = {{.what = "a weight that is no matrix",
                   .call = [=] { ops::embedding(ids({0}), randn({3})); },
                   .type = "ShapeError",
                   .message = "embedding: weight must be [V, H], got [3]"},
                  {.what = "ids that are no integers",
                   .call =
                       [] {
                         ops::embedding(randn({1}), randn({3, 2}));
                       },
                   .type = "DtypeError",
                   .message = "embedding: ids must be int64, got float64"},
                  {.what = "an integer weight",
                   .call =
                       [=] {
                         ops::embedding(ids({0}), Tensor::zeros({3, 2}, Dtype::kInt64));
                       },
                   .type = "DtypeError",
                   .message = "embedding: weight must be float32 or float64, got int64"},
                  {.what = "an id out of range",
                   .call =
                       [=] {
                         ops::embedding(ids({0, 2, 3}), randn({3, 2}));
                       },
                   .type = "ValueError",
                   .message = "embedding: token id must be in [0, 3), got 3 at position 2"}};
  return entry;
}

// Row by row: the softmax over all keys of the document up to the query, then the weighted sum.
Arrays attention_reference(const Arrays& in, const Json& args) {
  const auto &q = in[0], &k = in[1], &v = in[2];
  const auto group = q.dim(1) / k.dim(1), d = q.dim(2);
  const double scale = args["scale"];
  Array out(q.shape);
  const auto cu_seqlens = integers_from(args["cu_seqlens"]);
  for (std::size_t document = 1; document < cu_seqlens.size(); ++document) {
    const auto begin = cu_seqlens[document - 1];
    for (auto t = begin; t < cu_seqlens[document]; ++t) {
      for (std::int64_t h = 0; h < q.dim(1); ++h) {
        std::vector<double> p;
        double total = 0;
        for (auto j = begin; j <= t; ++j) {
          double score = 0;
          for (std::int64_t i = 0; i < d; ++i) score += q[{t, h, i}] * k[{j, h / group, i}];
          p.push_back(std::exp(scale * score));
          total += p.back();
        }
        for (std::int64_t i = 0; i < d; ++i) {
          double sum = 0;
          for (auto j = begin; j <= t; ++j) {
            sum += p[static_cast<std::size_t>(j - begin)] * v[{j, h / group, i}];
          }
          out[{t, h, i}] = sum / total;
        }
      }
    }
  }
  return {out};
}

OpEntry attention_op() {
  OpEntry entry{.op = "attention", .saved_outputs = {0}};
  entry.run = [](const TensorList& in, const Json& args) {
    return TensorList{ops::attention(in[0], in[1], in[2],
                                     Documents(integers_from(args["cu_seqlens"])), args["scale"])};
  };
  entry.reference = attention_reference;
  const auto sample = [](const std::string& what, const Shape& query, std::int64_t kv_heads,
                         const Json& cu_seqlens, bool large = false) {
    const Shape keys{query[0], kv_heads, query[2]};
    return OpSample{.what = what,
                    .inputs = {{.shape = query, .saved = true},
                               {.shape = keys, .saved = true},
                               {.shape = keys, .saved = true}},
                    .args = {{"cu_seqlens", cu_seqlens},
                             {"scale", 1 / std::sqrt(static_cast<double>(query[2]))}},
                    .differences = large ? Differences::kOneDirection : Differences::kEveryElement};
  };
  entry.samples = {sample("one document", {5, 2, 3}, 2, {0, 5}),
                   sample("grouped queries", {4, 6, 2}, 2, {0, 4}),
                   sample("documents, one of them empty", {7, 2, 4}, 1, {0, 3, 3, 4, 7}),
                   sample("one token", {1, 1, 1}, 1, {0, 1}),
                   sample("more keys than a block", {101, 1, 2}, 1, {0, 1, 101}),
                   sample("no tokens", {0, 2, 4}, 1, {0, 0}),
                   sample("several tasks", {210, 4, 8}, 2, {0, 50, 210}, true)};
  const auto attention = [](const Shape& q, const Shape& k, const Shape& v, std::int64_t tokens) {
    ops::attention(randn(q), randn(k), randn(v), Documents::one(tokens), 1);
  };
  const Shape q{4, 2, 3};
  entry.errors = {
      {.what = "q of another rank",
       .call =
           [=] {
             attention({4, 6}, q, q, 4);
           },
       .type = "ShapeError",
       .message = "attention: q must be [T, Nq, D], got [4, 6]"},
      {.what = "k of another rank",
       .call =
           [=] {
             attention(q, {4, 6}, q, 4);
           },
       .type = "ShapeError",
       .message = "attention: k must be [T, Nkv, D], got [4, 6]"},
      {.what = "k of another length",
       .call =
           [=] {
             attention(q, {5, 2, 3}, q, 4);
           },
       .type = "ShapeError",
       .message = "attention: k must be [4, Nkv, 3] to match q [4, 2, 3], got [5, 2, 3]"},
      {.what = "v unlike k",
       .call =
           [=] {
             attention(q, {4, 1, 3}, q, 4);
           },
       .type = "ShapeError",
       .message = "attention: v must be [4, 1, 3] to match k, got [4, 2, 3]"},
      {.what = "heads without elements",
       .call =
           [=] {
             attention({4, 2, 0}, {4, 2, 0}, {4, 2, 0}, 4);
           },
       .type = "ShapeError",
       .message = "attention: head dimension must be at least 1, got q [4, 2, 0]"},
      {.what = "heads that do not divide",
       .call =
           [=] {
             attention({4, 3, 3}, q, q, 4);
           },
       .type = "ShapeError",
       .message = "attention: query heads must be a multiple of key/value heads, got 3 and 2"},
      {.what = "mixed dtypes",
       .call =
           [=] {
             ops::attention(randn(q), randn(q), randn(q, 1, Dtype::kFloat32), Documents::one(4), 1);
           },
       .type = "DtypeError",
       .message = "attention: q, k and v must be of one dtype, got float64, float64 and float32"},
      {.what = "documents that end early",
       .call = [=] { attention(q, q, q, 3); },
       .type = "ValueError",
       .message = "attention: documents must have the 4 tokens of q, got 3"}};
  return entry;
}

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
  const auto table = [](std::int64_t head_dim, double theta, Dtype dtype = Dtype::kFloat32) {
    ops::rope_table(Tensor::zeros({3}, Dtype::kInt64), head_dim, theta, dtype);
  };
  entry.errors = {
      {.what = "a matrix of positions",
       .call =
           [] {
             ops::rope_table(Tensor::zeros({1, 3}, Dtype::kInt64), 4, 1e4, Dtype::kFloat32);
           },
       .type = "ShapeError",
       .message = "rope_table: positions must be [T], got [1, 3]"},
      {.what = "positions that are no integers",
       .call = [] { ops::rope_table(randn({3}), 4, 1e4, Dtype::kFloat32); },
       .type = "DtypeError",
       .message = "rope_table: positions must be int64, got float64"},
      {.what = "an odd head dimension",
       .call = [=] { table(5, 1e4); },
       .type = "ValueError",
       .message = "rope_table: head_dim must be even and at least 2, got 5"},
      {.what = "theta of zero",
       .call = [=] { table(4, 0); },
       .type = "ValueError",
       .message = "rope_table: theta must be positive, got 0"},
      {.what = "an integer table",
       .call = [=] { table(4, 1e4, Dtype::kInt64); },
       .type = "DtypeError",
       .message = "arithmetic needs float32 or float64, got int64"}};
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
  const auto rope = [](const Shape& x, const Shape& cos, const Shape& sin) {
    ops::rope(randn(x), {.cos = randn(cos), .sin = randn(sin)});
  };
  entry.errors = {{.what = "two dimensions",
                   .call =
                       [=] {
                         rope({3, 4}, {3, 2}, {3, 2});
                       },
                   .type = "ShapeError",
                   .message = "rope: x must be [T, N, D], got [3, 4]"},
                  {.what = "an odd head dimension",
                   .call =
                       [=] {
                         rope({3, 1, 5}, {3, 2}, {3, 2});
                       },
                   .type = "ShapeError",
                   .message = "rope: the last dimension of x must be even, got [3, 1, 5]"},
                  {.what = "a table that is too short",
                   .call =
                       [=] {
                         rope({3, 1, 4}, {3, 2}, {2, 2});
                       },
                   .type = "ShapeError",
                   .message = "rope: table must be [3, 2] to match x [3, 1, 4], got cos [3, 2] and "
                              "sin [2, 2]"},
                  {.what = "mixed dtypes",
                   .call =
                       [] {
                         ops::rope(randn({3, 1, 4}), {.cos = randn({3, 2}),
                                                      .sin = randn({3, 2}, 1, Dtype::kFloat32)});
                       },
                   .type = "DtypeError",
                   .message = "rope: x is float64 but the table is float64 and float32"}};
  return entry;
}

}  // namespace

std::vector<OpEntry> token_entries() {
  return {embedding_op(), attention_op(), rope_table_op(), rope_op()};
}

}  // namespace moegrad::test
