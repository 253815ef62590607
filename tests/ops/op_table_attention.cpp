// SPDX-License-Identifier: Apache-2.0
// Shapes: T tokens, Nq query heads, Nkv key and value heads, D head dimension.
#include <cmath>

#include "ops/attention.h"
#include "tests/ops/dropped_pairs.h"
#include "tests/ops/op_table.h"
#include "tests/testing.h"

namespace moegrad::test {
namespace {

// The inputs after q, k and v: first `allowed`, then the ids for dropout, if there are any.
ops::AttentionOptions options_of(const TensorList& in, const Json& args) {
  ops::AttentionOptions options;
  if (args.value("mask", "") == "full") options.mask = ops::AttentionMask::kFull;
  if (args.contains("window")) {
    options.mask = ops::AttentionMask::kSlidingWindow;
    options.window = args["window"];
  }
  std::size_t next = 3;
  if (args.value("allowed", false)) options.allowed = in[next++];
  if (args.contains("p")) {
    options.dropout = {.p = args["p"],
                       .seed = args["seed"],
                       .purpose = args["purpose"],
                       .ids = next < in.size() ? in[next] : Tensor()};
  }
  return options;
}

Arrays attention_reference(const Arrays& in, const Json& args) {
  const auto &q = in[0], &k = in[1], &v = in[2];
  const auto group = q.dim(1) / k.dim(1), d = q.dim(2);
  const double scale = args["scale"];
  const bool has_allowed = args.value("allowed", false), drops = args.contains("p");
  const std::size_t id_input = has_allowed ? 4 : 3;
  const auto id = [&](std::int64_t t) {
    return id_input < in.size() ? in[id_input][{t}] : static_cast<double>(t);
  };
  const auto sees = [&](std::int64_t h, std::int64_t t, std::int64_t j) {
    if (args.value("mask", "") != "full" && j > t) return false;
    if (args.contains("window") && j <= t - args["window"].get<std::int64_t>()) return false;
    if (!has_allowed) return true;
    return (in[3].shape.ndim() == 3 ? in[3][{h, t, j}] : in[3][{t, j}]) != 0;
  };
  Array out(q.shape);
  const auto cu_seqlens = integers_from(args["cu_seqlens"]);
  for (std::size_t document = 1; document < cu_seqlens.size(); ++document) {
    const auto begin = cu_seqlens[document - 1], end = cu_seqlens[document];
    for (auto t = begin; t < end; ++t) {
      for (std::int64_t h = 0; h < q.dim(1); ++h) {
        double total = 0;
        for (auto j = begin; j < end; ++j) {
          if (!sees(h, t, j)) continue;
          double score = 0;
          for (std::int64_t i = 0; i < d; ++i) score += q[{t, h, i}] * k[{j, h / group, i}];
          const double p = std::exp(scale * score);
          total += p;
          if (drops && !pair_is_kept(args, h, id(t), id(j))) continue;
          const double weight = drops ? p / (1 - args["p"].get<double>()) : p;
          for (std::int64_t i = 0; i < d; ++i) out[{t, h, i}] += weight * v[{j, h / group, i}];
        }
        for (std::int64_t i = 0; i < d && total > 0; ++i) out[{t, h, i}] /= total;
      }
    }
  }
  return {out};
}

void add_samples_with_options(OpEntry& entry) {
  const auto add = [&](const std::string& what, const Shape& query, std::int64_t kv_heads,
                       const Json& cu_seqlens, const Json& options, const Shape& allowed = {},
                       bool ids = false) {
    const Shape keys{query[0], kv_heads, query[2]};
    OpSample sample{.what = what,
                    .inputs = {{.shape = query, .saved = true},
                               {.shape = keys, .saved = true},
                               {.shape = keys, .saved = true}},
                    .args = options};
    sample.args["cu_seqlens"] = cu_seqlens;
    sample.args["scale"] = 0.7;
    if (allowed.ndim() > 0) {
      sample.inputs.push_back({.shape = allowed, .draw = Draw::kMask, .saved = true});
      sample.args["allowed"] = true;
    }
    if (ids) {
      sample.inputs.push_back({.shape = {query[0]},
                               .draw = Draw::kIndices,
                               .bound = std::int64_t{1} << 32,
                               .saved = true});
    }
    entry.samples.push_back(sample);
  };
  // Doubling is exact, also in bfloat16: what a token that sees one key gets loses no bit, and its
  // scores have no gradient.
  const Json dropout{{"p", 0.5}, {"seed", 7}, {"purpose", "layers.0.attention"}};
  add("full", {5, 4, 3}, 2, {0, 5}, {{"mask", "full"}});
  add("full, documents", {7, 2, 2}, 1, {0, 3, 3, 7}, {{"mask", "full"}});
  add("a window of two", {6, 2, 3}, 1, {0, 6}, {{"window", 2}});
  add("a window of one", {4, 1, 2}, 1, {0, 1, 4}, {{"window", 1}});
  add("a window wider than all", {4, 1, 2}, 1, {0, 4}, {{"window", 9}});
  add("pairs that are allowed", {6, 4, 3}, 2, {0, 6}, {{"mask", "full"}}, {6, 6});
  add("allowed by head, and causal", {5, 2, 3}, 1, {0, 2, 5}, Json::object(), {2, 5, 5});
  add("dropout", {6, 2, 3}, 1, {0, 6}, dropout);
  add("dropout by ids", {6, 4, 3}, 2, {0, 2, 6}, dropout, {}, true);
  auto all = dropout;
  all["mask"] = "full";
  add("dropout of what is allowed", {5, 2, 3}, 2, {0, 5}, all, {5, 5}, true);
  add("one token, dropped or not", {1, 1, 2}, 1, {0, 1}, dropout);
  add("no tokens, full", {0, 2, 4}, 1, {0, 0}, {{"mask", "full"}});
  auto window = dropout;
  window["window"] = 5;
  add("a window, allowed by head, and dropout", {14, 2, 3}, 1, {0, 4, 14}, window, {2, 14, 14},
      true);
}

OpEntry attention_op() {
  OpEntry entry{
      .op = "attention", .dtypes = kReals, .bf16_gradient_tolerance = 0x1p-5, .saved_outputs = {0}};
  entry.run = [](const TensorList& in, const Json& args) {
    return TensorList{ops::attention(in[0], in[1], in[2],
                                     Documents(integers_from(args["cu_seqlens"])), args["scale"],
                                     options_of(in, args))};
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
  add_samples_with_options(entry);
  const auto attention = [](const Shape& q, const Shape& k, const Shape& v, std::int64_t tokens,
                            Dtype dtype_of_v = Dtype::kFloat64) {
    return [=] {
      ops::attention(randn(q), randn(k), randn(v, 1, dtype_of_v), Documents::one(tokens), 1);
    };
  };
  const Shape q{4, 2, 3};
  entry.errors = {{"q of another rank", attention({4, 6}, q, q, 4), "ShapeError",
                   "attention: q must be [T, Nq, D], got [4, 6]"},
                  {"k of another rank", attention(q, {4, 6}, q, 4), "ShapeError",
                   "attention: k must be [T, Nkv, D], got [4, 6]"},
                  {"k of another length", attention(q, {5, 2, 3}, q, 4), "ShapeError",
                   "attention: k must be [4, Nkv, 3] to match q [4, 2, 3], got [5, 2, 3]"},
                  {"v unlike k", attention(q, {4, 1, 3}, q, 4), "ShapeError",
                   "attention: v must be [4, 1, 3] to match k, got [4, 2, 3]"},
                  {"heads without elements", attention({4, 2, 0}, {4, 2, 0}, {4, 2, 0}, 4),
                   "ShapeError", "attention: head dimension must be at least 1, got q [4, 2, 0]"},
                  {"heads that do not divide", attention({4, 3, 3}, q, q, 4), "ShapeError",
                   "attention: query heads must be a multiple of key/value heads, got 3 and 2"},
                  {"mixed dtypes", attention(q, q, q, 4, Dtype::kFloat32), "DtypeError",
                   "attention: q, k and v must be of one dtype, got float64, float64 and float32"},
                  {"documents that end early", attention(q, q, q, 3), "ValueError",
                   "attention: documents must have the 4 tokens of q, got 3"}};
  const auto refused = [&](const std::string& what, const ops::AttentionOptions& options,
                           const std::string& type, const std::string& message) {
    entry.errors.push_back(
        {what, [=] { ops::attention(randn(q), randn(q), randn(q), Documents::one(4), 1, options); },
         type, "attention: " + message});
  };
  refused("a window of nothing", {.mask = ops::AttentionMask::kSlidingWindow}, "ValueError",
          "window must be at least 1, got 0");
  refused("a mask of another length", {.allowed = Tensor::zeros({3, 4}, Dtype::kBool)},
          "ShapeError", "allowed must be [4, 4] or [2, 4, 4] to match q [4, 2, 3], got [3, 4]");
  refused("a mask of numbers", {.allowed = randn({4, 4})}, "DtypeError",
          "allowed must be bool, got float64");
  refused("a probability of 1", {.dropout = {{.p = 1}}}, "ValueError",
          "dropout must be in [0, 1), got 1");
  refused("too few ids", {.dropout = {{.p = 0.5, .ids = Tensor::arange(3)}}}, "ShapeError",
          "dropout ids must be [4], got [3]");
  refused("ids that are no integers", {.dropout = {{.p = 0.5, .ids = randn({4})}}}, "DtypeError",
          "ids must be int64, got float64");
  constexpr std::int64_t kBound = std::int64_t{1} << 32;
  refused("an id of 33 bits",
          {.dropout = {{.p = 0.5, .ids = Tensor::arange(kBound - 3, kBound + 1)}}}, "ValueError",
          "id must be in [0, 4294967296), got 4294967296 at position 3");
  return entry;
}

}  // namespace

std::vector<OpEntry> attention_entries() { return {attention_op()}; }

}  // namespace moegrad::test
