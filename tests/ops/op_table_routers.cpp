// SPDX-License-Identifier: Apache-2.0
// Shapes: T tokens, E experts, K experts per token.
#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "ops/expert_choice.h"
#include "ops/router.h"
#include "tests/ops/indices.h"
#include "tests/ops/op_table.h"
#include "tests/testing.h"

namespace moegrad::test {
namespace {

// softmax over the last dimension of [T, E]
Array probabilities(const Array& logits) {
  Array p = logits;
  for (std::int64_t t = 0; t < p.dim(0); ++t) {
    double total = 0;
    for (std::int64_t e = 0; e < p.dim(1); ++e) total += p[{t, e}] = std::exp(logits[{t, e}]);
    for (std::int64_t e = 0; e < p.dim(1); ++e) p[{t, e}] /= total;
  }
  return p;
}

Arrays topk_reference(const Arrays& in, const Json& args) {
  const Array p = probabilities(in[0]);
  const std::int64_t k = args["k"];
  Array weights({p.dim(0), k}), indices = weights;
  for (std::int64_t t = 0; t < p.dim(0); ++t) {
    std::vector<std::int64_t> order(static_cast<std::size_t>(p.dim(1)));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](std::int64_t a, std::int64_t b) {
      return in[0][{t, a}] > in[0][{t, b}];
    });
    double total = 0;
    for (std::int64_t j = 0; j < k; ++j) {
      const auto expert = in.size() > 1 ? static_cast<std::int64_t>(in[1][{t, j}])
                                        : order[static_cast<std::size_t>(j)];
      indices[{t, j}] = static_cast<double>(expert);
      total += weights[{t, j}] = p[{t, expert}];
    }
    if (!args["normalize"].get<bool>()) continue;
    for (std::int64_t j = 0; j < k; ++j) weights[{t, j}] /= total;
  }
  return {weights, indices};
}

OpEntry topk_softmax_op() {
  OpEntry entry{.op = "topk_softmax", .saved_outputs = {0, 1}};
  entry.run = [](const TensorList& in, const Json& args) {
    const auto result =
        ops::topk_softmax(in[0], args["k"], args["normalize"], in.size() > 1 ? in[1] : Tensor());
    return TensorList{result.weights, result.indices};
  };
  entry.reference = topk_reference;
  const auto sample = [](const std::string& what, const Shape& shape, std::int64_t k,
                         bool normalize, bool replay = false, bool large = false) {
    OpSample made{.what = what,
                  .inputs = {{.shape = shape, .saved = !normalize}},
                  .args = {{"k", k}, {"normalize", normalize}},
                  .differences = large ? Differences::kOneDirection : Differences::kEveryElement};
    if (replay) {
      made.inputs.push_back({.shape = {shape[0], k},
                             .draw = Draw::kDistinctIndices,
                             .bound = shape[1],
                             .saved = true});
    }
    return made;
  };
  auto ties = sample("ties", {2, 4}, 2, true);
  ties.inputs[0].given = {1, 3, 3, 3, 0, 0, 0, 0};
  ties.differences = Differences::kNone;
  entry.samples = {sample("normalised", {4, 5}, 2, true),
                   sample("not normalised", {4, 5}, 2, false),
                   sample("all experts", {3, 3}, 3, true),
                   sample("one expert of many", {3, 17}, 1, false),
                   sample("one normalised expert", {3, 4}, 1, true),
                   sample("replayed", {3, 6}, 2, true, true),
                   sample("replayed, not normalised", {3, 6}, 2, false, true),
                   sample("one token, one expert", {1, 1}, 1, false),
                   sample("no tokens", {0, 4}, 2, true),
                   ties,
                   sample("several pieces", {500, 40}, 5, false, false, true)};
  const auto topk = [](const Tensor& logits, std::int64_t k, const Tensor& replay = {}) {
    return [=] { ops::topk_softmax(logits, k, true, replay); };
  };
  entry.errors = {
      {"another rank", topk(randn({4}), 1), "ShapeError",
       "topk_softmax: logits must be [T, E], got [4]"},
      {"no expert", topk(randn({2, 4}), 0), "ValueError",
       "topk_softmax: k must be in [1, 4] for logits [2, 4], got 0"},
      {"too many experts", topk(randn({2, 4}), 5), "ValueError",
       "topk_softmax: k must be in [1, 4] for logits [2, 4], got 5"},
      {"integers", topk(Tensor::zeros({2, 4}, Dtype::kInt64), 1), "DtypeError",
       "topk_softmax: logits must be float32 or float64, got int64"},
      {"a replay of another shape", topk(randn({2, 4}), 2, indices_of({0, 1}, {1, 2})),
       "ShapeError",
       "topk_softmax: replay_indices must be [2, 2] for logits [2, 4] and k = 2, got "
       "[1, 2]"},
      {"a replay that is no integers", topk(randn({1, 4}), 2, randn({1, 2})), "DtypeError",
       "topk_softmax: replay_indices must be int64, got float64"},
      {"a replay out of range", topk(randn({1, 4}), 2, indices_of({0, 4}, {1, 2})), "ValueError",
       "topk_softmax: replayed expert must be in [0, 4), got 4 at token 0"},
      {"an expert replayed twice", topk(randn({1, 4}), 2, indices_of({3, 3}, {1, 2})), "ValueError",
       "topk_softmax: replayed experts of a token must be distinct, got 3 twice at token 0"}};
  return entry;
}

// --- experts by scores that do not depend on each other

struct Choice {
  std::string what;
  Shape shape;  // [T, E]
  std::int64_t k, groups = 1, topk_groups = 1;
  bool bias = false, normalize = false, replay = false, large = false;
};

ops::ExpertChoice choice_of(const Json& args) {
  return {.k = args["k"], .num_groups = args["groups"], .topk_groups = args["topk_groups"]};
}

OpSample choice_sample(const Choice& c) {
  OpSample sample{.what = c.what,
                  .inputs = {{.shape = c.shape}},
                  .args = {{"k", c.k},
                           {"groups", c.groups},
                           {"topk_groups", c.topk_groups},
                           {"normalize", c.normalize},
                           {"bias", c.bias},
                           {"replay", c.replay}},
                  .differences = c.large ? Differences::kOneDirection : Differences::kEveryElement};
  if (c.bias) sample.inputs.push_back({.shape = {c.shape[1]}, .has_gradient = false});
  if (c.replay) {
    sample.inputs.push_back({.shape = {c.shape[0], c.k},
                             .draw = Draw::kDistinctIndices,
                             .bound = c.shape[1],
                             .saved = true});
  }
  return sample;
}

/// Sorts the experts of the groups that are sorted first.
std::vector<std::int64_t> best_experts(const std::vector<double>& choice, const Json& args) {
  const auto experts = std::ssize(choice);
  const std::int64_t k = args["k"], groups = args["groups"], topk_groups = args["topk_groups"];
  const auto in_group = experts / groups;
  const auto by_falling = [](const std::vector<double>& values, std::vector<std::int64_t>& order) {
    std::ranges::stable_sort(order, [&](std::int64_t a, std::int64_t b) {
      return values[static_cast<std::size_t>(a)] > values[static_cast<std::size_t>(b)];
    });
  };
  std::vector<double> sums;
  std::vector<std::int64_t> group_order;
  for (std::int64_t g = 0; g < groups; ++g) {
    std::vector<double> own(choice.begin() + g * in_group, choice.begin() + (g + 1) * in_group);
    std::ranges::sort(own, std::greater<>());
    sums.push_back(own.size() > 1 ? own[0] + own[1] : own[0]);
    group_order.push_back(g);
  }
  by_falling(sums, group_order);
  std::vector<std::int64_t> order;
  for (std::int64_t e = 0; e < experts; ++e) {
    const auto end = group_order.begin() + topk_groups;
    if (std::find(group_order.begin(), end, e / in_group) != end) order.push_back(e);
  }
  by_falling(choice, order);
  order.resize(static_cast<std::size_t>(k));
  return order;
}

/// Row t of scores [T, E] with the bias added.
std::vector<double> choice_row(const Array& scores, std::int64_t t, const Arrays& in,
                               const Json& args) {
  std::vector<double> choice;
  for (std::int64_t e = 0; e < scores.dim(1); ++e) {
    choice.push_back(scores[{t, e}] + (args["bias"].get<bool>() ? in[1][{e}] : 0.0));
  }
  return choice;
}

OpEntry choose_experts_op() {
  OpEntry entry{.op = "choose_experts", .differentiable = false};
  entry.run = [](const TensorList& in, const Json& args) {
    return TensorList{
        ops::choose_experts(in[0], choice_of(args), args["bias"].get<bool>() ? in[1] : Tensor())};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    Array chosen({in[0].dim(0), args["k"].get<std::int64_t>()});
    for (std::int64_t t = 0; t < in[0].dim(0); ++t) {
      std::int64_t j = 0;
      for (const auto e : best_experts(choice_row(in[0], t, in, args), args)) {
        chosen[{t, j++}] = static_cast<double>(e);
      }
    }
    return Arrays{chosen};
  };
  auto ties =
      choice_sample({.what = "ties", .shape = {2, 6}, .k = 3, .groups = 3, .topk_groups = 2});
  ties.inputs[0].given = {1, 3, 3, 1, 4, 0, 0, 0, 0, 0, 0, 0};
  entry.samples = {
      choice_sample({.what = "one of many", .shape = {3, 17}, .k = 1}),
      choice_sample({.what = "all", .shape = {3, 3}, .k = 3, .bias = true}),
      choice_sample({.what = "biased", .shape = {5, 7}, .k = 3, .bias = true}),
      choice_sample({.what = "of two groups of four",
                     .shape = {9, 12},
                     .k = 4,
                     .groups = 4,
                     .topk_groups = 2,
                     .bias = true}),
      choice_sample(
          {.what = "all of one group", .shape = {4, 6}, .k = 2, .groups = 3, .topk_groups = 1}),
      choice_sample({.what = "groups of one",
                     .shape = {4, 5},
                     .k = 2,
                     .groups = 5,
                     .topk_groups = 3,
                     .bias = true}),
      choice_sample({.what = "all groups", .shape = {4, 6}, .k = 5, .groups = 2, .topk_groups = 2}),
      choice_sample({.what = "one token, one expert", .shape = {1, 1}, .k = 1, .bias = true}),
      choice_sample({.what = "no tokens", .shape = {0, 4}, .k = 2, .groups = 2, .topk_groups = 1}),
      ties,
      choice_sample({.what = "several pieces",
                     .shape = {500, 40},
                     .k = 5,
                     .groups = 8,
                     .topk_groups = 3,
                     .bias = true})};
  const auto choose = [](const Tensor& scores, const ops::ExpertChoice& choice,
                         const Tensor& bias = {}) {
    return [=] { ops::choose_experts(scores, choice, bias); };
  };
  entry.errors = {
      {"another rank", choose(randn({4}), {.k = 1}), "ShapeError",
       "choose_experts: scores must be [T, E], got [4]"},
      {"integers", choose(Tensor::zeros({2, 4}, Dtype::kInt64), {.k = 1}), "DtypeError",
       "choose_experts: scores must be float32 or float64, got int64"},
      {"no expert", choose(randn({2, 4}), {.k = 0}), "ValueError",
       "choose_experts: k must be in [1, 4], the experts of 1 of 1 groups, got 0"},
      {"more than the groups have",
       choose(randn({2, 8}), {.k = 5, .num_groups = 4, .topk_groups = 2}), "ValueError",
       "choose_experts: k must be in [1, 4], the experts of 2 of 4 groups, got 5"},
      {"groups of unequal size", choose(randn({2, 8}), {.k = 1, .num_groups = 3, .topk_groups = 1}),
       "ValueError", "choose_experts: num_groups must divide the 8 experts, got 3"},
      {"no groups", choose(randn({2, 8}), {.k = 1, .num_groups = 0, .topk_groups = 1}),
       "ValueError", "choose_experts: num_groups must divide the 8 experts, got 0"},
      {"more groups than there are",
       choose(randn({2, 8}), {.k = 1, .num_groups = 4, .topk_groups = 5}), "ValueError",
       "choose_experts: topk_groups must be in [1, 4] (num_groups), got 5"},
      {"a bias of another shape", choose(randn({2, 4}), {.k = 1}, randn({2, 4})), "ShapeError",
       "choose_experts: bias must be [4] for 4 experts, got [2, 4]"},
      {"a bias of another dtype", choose(randn({2, 4}), {.k = 1}, randn({4}, 1, Dtype::kFloat32)),
       "DtypeError", "choose_experts: bias must be float64 as the scores are, got float32"},
      {"a bias without bounds",
       choose(randn({2, 2}), {.k = 1}, Tensor::full({2}, HUGE_VAL, Dtype::kFloat64)), "ValueError",
       "choose_experts: bias must be finite, got inf"}};
  return entry;
}

OpEntry topk_sigmoid_op() {
  OpEntry entry{.op = "topk_sigmoid", .saved_outputs = {1}, .saved_by = "gather"};
  entry.run = [](const TensorList& in, const Json& args) {
    const bool bias = args["bias"].get<bool>();
    const auto result =
        ops::topk_sigmoid(in[0], choice_of(args), args["normalize"], bias ? in[1] : Tensor(),
                          args["replay"].get<bool>() ? in[bias ? 2 : 1] : Tensor());
    return TensorList{result.weights, result.indices};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    const std::int64_t k = args["k"];
    Array scores = in[0];
    for (auto& score : scores.values) score = 1 / (1 + std::exp(-score));
    Array weights({in[0].dim(0), k}), indices = weights;
    for (std::int64_t t = 0; t < in[0].dim(0); ++t) {
      auto best = best_experts(choice_row(scores, t, in, args), args);
      double total = 0;
      for (std::int64_t j = 0; j < k; ++j) {
        if (args["replay"].get<bool>()) {
          best[static_cast<std::size_t>(j)] = static_cast<std::int64_t>(in.back()[{t, j}]);
        }
        indices[{t, j}] = static_cast<double>(best[static_cast<std::size_t>(j)]);
        total += weights[{t, j}] = scores[{t, best[static_cast<std::size_t>(j)]}];
      }
      if (!args["normalize"].get<bool>()) continue;
      for (std::int64_t j = 0; j < k; ++j) weights[{t, j}] /= total;
    }
    return Arrays{weights, indices};
  };
  entry.samples = {
      choice_sample({.what = "normalised", .shape = {4, 5}, .k = 2, .normalize = true}),
      choice_sample({.what = "biased", .shape = {4, 5}, .k = 2, .bias = true}),
      choice_sample({.what = "in groups",
                     .shape = {4, 8},
                     .k = 3,
                     .groups = 4,
                     .topk_groups = 2,
                     .bias = true,
                     .normalize = true}),
      choice_sample({.what = "one expert of many", .shape = {3, 17}, .k = 1}),
      choice_sample({.what = "all experts", .shape = {3, 3}, .k = 3, .normalize = true}),
      choice_sample(
          {.what = "replayed", .shape = {3, 6}, .k = 2, .normalize = true, .replay = true}),
      choice_sample(
          {.what = "replayed, biased", .shape = {3, 6}, .k = 2, .bias = true, .replay = true}),
      choice_sample({.what = "one token, one expert", .shape = {1, 1}, .k = 1}),
      choice_sample({.what = "no tokens", .shape = {0, 4}, .k = 2, .normalize = true}),
      choice_sample({.what = "several pieces",
                     .shape = {500, 40},
                     .k = 5,
                     .groups = 4,
                     .topk_groups = 2,
                     .bias = true,
                     .normalize = true,
                     .large = true})};
  const auto topk = [](const Tensor& logits, const ops::ExpertChoice& choice,
                       const Tensor& replay = {}) {
    return [=] { ops::topk_sigmoid(logits, choice, true, {}, replay); };
  };
  entry.errors = {
      {"another rank", topk(randn({4}), {.k = 1}), "ShapeError",
       "topk_sigmoid: logits must be [T, E], got [4]"},
      {"integers", topk(Tensor::zeros({2, 4}, Dtype::kInt64), {.k = 1}), "DtypeError",
       "topk_sigmoid: logits must be float32 or float64, got int64"},
      {"too many experts", topk(randn({2, 4}), {.k = 5}), "ValueError",
       "topk_sigmoid: k must be in [1, 4], the experts of 1 of 1 groups, got 5"},
      {"a replay of another shape", topk(randn({2, 4}), {.k = 2}, indices_of({0, 1}, {1, 2})),
       "ShapeError",
       "topk_sigmoid: replay_indices must be [2, 2] for logits [2, 4] and k = 2, got "
       "[1, 2]"},
      {"an expert replayed twice", topk(randn({1, 4}), {.k = 2}, indices_of({3, 3}, {1, 2})),
       "ValueError",
       "topk_sigmoid: replayed experts of a token must be distinct, got 3 twice at token 0"}};
  return entry;
}

}  // namespace

std::vector<OpEntry> router_entries() {
  return {topk_softmax_op(), choose_experts_op(), topk_sigmoid_op()};
}

}  // namespace moegrad::test
