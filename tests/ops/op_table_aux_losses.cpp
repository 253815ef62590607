// SPDX-License-Identifier: Apache-2.0
// Losses and figures of routers. Shapes: T tokens, E experts, K experts per token.
#include <cmath>

#include "ops/aux_loss.h"
#include "tests/ops/indices.h"
#include "tests/ops/op_table.h"
#include "tests/testing.h"

namespace moegrad::test {
namespace {

// --- losses of the router

// The inputs are the logits of all layers, their indices, and the mask if there is one.
Arrays load_balancing_reference(const Arrays& in, const Json& args) {
  const auto layers = args["layers"].get<std::size_t>();
  const auto tokens = in[0].dim(0), experts = in[0].dim(1), k = in[layers].dim(1);
  const auto weight = [&](std::int64_t t) { return in.size() > 2 * layers ? in.back()[{t}] : 1.0; };
  double total = 0;
  for (std::int64_t t = 0; t < tokens; ++t) total += weight(t) * static_cast<double>(layers);
  Array chosen_by({k, experts}), mean_probability({experts});
  for (std::size_t layer = 0; layer < layers; ++layer) {
    for (std::int64_t t = 0; t < tokens && total > 0; ++t) {
      for (std::int64_t e = 0; e < experts; ++e) {
        mean_probability[{e}] +=
            weight(t) * std::exp(in[layer][{t, e}] - logsumexp(in[layer], t)) / total;
        for (std::int64_t j = 0; j < k; ++j) {
          const bool chose = in[layers + layer][{t, j}] == static_cast<double>(e);
          if (chose) chosen_by[{j, e}] += weight(t) / total;
        }
      }
    }
  }
  double loss = 0;
  for_each_index({k, experts}, [&](const Shape& i) {
    loss += chosen_by[i] * mean_probability[{i[1]}] * static_cast<double>(experts);
  });
  return {Array({}, loss)};
}

OpEntry load_balancing_loss_op() {
  OpEntry entry{.op = "load_balancing_loss"};
  entry.run = [](const TensorList& in, const Json& args) {
    const auto layers = args["layers"].get<std::ptrdiff_t>();
    const TensorList logits(in.begin(), in.begin() + layers),
        indices(in.begin() + layers, in.begin() + 2 * layers);
    const bool masked = std::ssize(in) > 2 * layers;
    return TensorList{ops::load_balancing_loss(logits, indices, masked ? in.back() : Tensor())};
  };
  entry.reference = load_balancing_reference;
  const auto sample = [](const std::string& what, int layers, const Shape& logits, std::int64_t k,
                         bool large = false) {
    OpSample made{.what = what,
                  .args = {{"layers", layers}},
                  .differences = large ? Differences::kOneDirection : Differences::kEveryElement};
    for (int i = 0; i < layers; ++i) made.inputs.push_back({.shape = logits, .saved = true});
    for (int i = 0; i < layers; ++i)
      made.inputs.push_back(
          {.shape = {logits[0], k}, .draw = Draw::kDistinctIndices, .bound = logits[1]});
    return made;
  };
  const auto masked = [](OpSample made, const std::vector<double>& mask) {
    made.inputs.push_back(
        {.shape = {std::ssize(mask)}, .given = mask, .has_gradient = false, .saved = true});
    return made;
  };
  entry.samples = {sample("one layer", 1, {5, 4}, 2),
                   sample("three layers", 3, {4, 3}, 1),
                   masked(sample("padding", 2, {5, 4}, 2), {1, 0, 1, 1, 0}),
                   masked(sample("weights", 1, {3, 5}, 2), {0.5, 2, 0.25}),
                   masked(sample("nothing but padding", 1, {2, 3}, 1), {0, 0}),
                   sample("one expert", 1, {3, 1}, 1),
                   sample("no tokens", 2, {0, 4}, 2),
                   sample("several pieces", 1, {500, 40}, 4, true)};
  const auto loss = [](const TensorList& logits, const TensorList& indices,
                       const Tensor& mask = {}) {
    return [=] { ops::load_balancing_loss(logits, indices, mask); };
  };
  const Tensor some = indices_of({0, 1}, {2, 1});
  entry.errors = {
      {"no layer", loss({}, {}), "ShapeError",
       "load_balancing_loss: needs logits and indices of at least one layer, got 0 and 0"},
      {"another rank", loss({randn({4})}, {some}), "ShapeError",
       "load_balancing_loss: logits must be [T, E], got [4]"},
      {"layers of other shapes", loss({randn({2, 3}), randn({2, 4})}, {some, some}), "ShapeError",
       "load_balancing_loss: logits of layer 1 must be [2, 3] as in layer 0, got [2, 4]"},
      {"indices of another length", loss({randn({3, 3})}, {some}), "ShapeError",
       "load_balancing_loss: indices of layer 0 must be [T, K] with T = 3 and one K for "
       "all layers, got [2, 1]"},
      {"integers", loss({Tensor::zeros({2, 3}, Dtype::kInt64)}, {some}), "DtypeError",
       "load_balancing_loss: logits must be float32 or float64, got int64"},
      {"indices that are no integers", loss({randn({2, 3})}, {randn({2, 1})}), "DtypeError",
       "load_balancing_loss: indices of layer 0 must be int64, got float64"},
      {"an expert out of range", loss({randn({2, 1})}, {some}), "ValueError",
       "load_balancing_loss: expert index must be in [0, 1), got 1 at token 1 of layer 0"},
      {"a mask of another length", loss({randn({2, 3})}, {some}, randn({3})), "ShapeError",
       "load_balancing_loss: token_mask must be [2], got [3]"},
      {"a negative weight",
       loss({randn({2, 3})}, {some}, Tensor::from(std::vector<double>{1, -1}, {2})), "ValueError",
       "load_balancing_loss: token_mask must be finite and not negative, got -1 at token 1"}};
  return entry;
}

OpEntry expert_load_op() {
  OpEntry entry{.op = "expert_load", .differentiable = false};
  entry.run = [](const TensorList& in, const Json& args) {
    const auto layers = args["layers"].get<std::ptrdiff_t>();
    const TensorList indices(in.begin(), in.begin() + layers);
    const Tensor mask = std::ssize(in) > layers ? in.back() : Tensor();
    return TensorList{ops::expert_load(indices, args["experts"], mask)};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    const auto layers = args["layers"].get<std::size_t>();
    Array load({args["experts"].get<std::int64_t>()});
    for (std::size_t layer = 0; layer < layers; ++layer) {
      for_each_index(in[layer].shape, [&](const Shape& i) {
        const double weight = in.size() > layers ? in.back()[{i[0]}] : 1.0;
        load[{static_cast<std::int64_t>(in[layer][i])}] += weight;
      });
    }
    return Arrays{load};
  };
  const auto sample = [](const std::string& what, int layers, const Shape& indices,
                         std::int64_t experts, bool masked = false) {
    OpSample made{.what = what, .args = {{"layers", layers}, {"experts", experts}}};
    for (int i = 0; i < layers; ++i) {
      made.inputs.push_back({.shape = indices, .draw = Draw::kDistinctIndices, .bound = experts});
    }
    if (masked) {
      made.inputs.push_back(
          {.shape = {indices[0]}, .draw = Draw::kPositive, .has_gradient = false});
    }
    return made;
  };
  entry.samples = {sample("one layer", 1, {5, 2}, 4), sample("three layers", 3, {4, 1}, 3),
                   sample("weights", 2, {7, 3}, 5, true), sample("one expert", 1, {3, 1}, 1),
                   sample("no tokens", 2, {0, 2}, 4)};
  const auto load = [](const TensorList& indices, std::int64_t experts, const Tensor& mask = {}) {
    return [=] { ops::expert_load(indices, experts, mask); };
  };
  const Tensor some = indices_of({0, 1}, {2, 1});
  entry.errors = {
      {"no layer", load({}, 2), "ShapeError",
       "expert_load: needs indices of at least one layer, got none"},
      {"no experts", load({some}, 0), "ValueError",
       "expert_load: num_experts must be at least 1, got 0"},
      {"layers of other tokens", load({some, indices_of({0}, {1, 1})}, 2), "ShapeError",
       "expert_load: indices of layer 1 must be [T, K] with the T of layer 0, got [1, 1]"},
      {"indices that are no integers", load({randn({2, 1})}, 2), "DtypeError",
       "expert_load: indices of layer 0 must be int64, got float64"},
      {"an expert out of range", load({some}, 1), "ValueError",
       "expert_load: expert index must be in [0, 1), got 1 at token 1 of layer 0"},
      {"a mask of another length", load({some}, 2, randn({3})), "ShapeError",
       "expert_load: token_mask must be [2], got [3]"},
      {"a weight that is not finite",
       load({some}, 2, Tensor::from(std::vector<double>{1, HUGE_VAL}, {2})), "ValueError",
       "expert_load: token_mask must be finite and not negative, got inf at token 1"}};
  return entry;
}

OpEntry balance_share_op() {
  OpEntry entry{.op = "balance_share"};
  entry.run = [](const TensorList& in, const Json& args) {
    const auto load = args["load"].get<std::vector<double>>();
    const Tensor mask = in.size() > 1 ? in[1] : Tensor();
    return TensorList{
        ops::balance_share(in[0], Tensor::from(load, {std::ssize(load)}), args["total"], mask)};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    const auto total = args["total"].get<double>();
    const auto load = args["load"].get<std::vector<double>>();
    double sum = 0;
    for (std::int64_t t = 0; t < in[0].dim(0) && total > 0; ++t) {
      const double weight = in.size() > 1 ? in[1][{t}] : 1.0;
      for (std::int64_t e = 0; e < in[0].dim(1); ++e) {
        sum += weight * std::exp(in[0][{t, e}] - logsumexp(in[0], t)) *
               load[static_cast<std::size_t>(e)];
      }
    }
    if (total > 0) sum *= static_cast<double>(in[0].dim(1)) / total / total;
    return Arrays{Array({}, sum)};
  };
  const auto sample = [](const std::string& what, const Shape& logits, double total,
                         bool masked = false, bool large = false) {
    std::vector<double> load;
    for (std::int64_t e = 0; e < logits[1]; ++e) load.push_back(0.5 + static_cast<double>(e % 4));
    OpSample made{.what = what,
                  .inputs = {{.shape = logits, .saved = true}},
                  .args = {{"total", total}, {"load", load}},
                  .differences = large ? Differences::kOneDirection : Differences::kEveryElement};
    if (masked) {
      made.inputs.push_back(
          {.shape = {logits[0]}, .draw = Draw::kPositive, .has_gradient = false, .saved = true});
    }
    return made;
  };
  entry.samples = {sample("odd sizes", {5, 3}, 7),
                   sample("weights", {4, 6}, 2.5, true),
                   sample("one expert", {3, 1}, 3),
                   sample("no tokens", {0, 4}, 2),
                   sample("nothing but padding", {2, 3}, 0),
                   sample("several pieces", {500, 40}, 900, false, true)};
  const auto share = [](const Tensor& logits, const Tensor& load, double total,
                        const Tensor& mask = {}) {
    return [=] { ops::balance_share(logits, load, total, mask); };
  };
  entry.errors = {
      {"logits of another rank", share(randn({3}), randn({3}), 1), "ShapeError",
       "balance_share: logits must be [T, E], got [3]"},
      {"integers", share(Tensor::zeros({2, 3}, Dtype::kInt64), randn({3}), 1), "DtypeError",
       "balance_share: logits must be float32 or float64, got int64"},
      {"a load of other experts", share(randn({2, 3}), randn({2}), 1), "ShapeError",
       "balance_share: load must be [3] for logits [2, 3], got [2]"},
      {"a load of another dtype", share(randn({2, 3}), randn({3}, 1, Dtype::kFloat32), 1),
       "DtypeError", "balance_share: load must be float64, got float32"},
      {"a negative total", share(randn({2, 3}), randn({3}), -1), "ValueError",
       "balance_share: total_weight must be finite and not negative, got -1"},
      {"a mask of another length", share(randn({2, 3}), randn({3}), 1, randn({3})), "ShapeError",
       "balance_share: token_mask must be [2], got [3]"},
      {"a negative weight",
       share(randn({2, 3}), randn({3}), 1, Tensor::from(std::vector<double>{1, -1}, {2})),
       "ValueError",
       "balance_share: token_mask must be finite and not negative, got -1 at token 1"}};
  return entry;
}

OpEntry router_entropy_op() {
  OpEntry entry{.op = "router_entropy", .differentiable = false};
  entry.run = [](const TensorList& in, const Json&) {
    const double sum = ops::router_entropy(in[0]);
    return TensorList{Tensor::full({}, sum, in[0].dtype())};
  };
  entry.reference = [](const Arrays& in, const Json&) {
    double total = 0;
    for (std::int64_t t = 0; t < in[0].dim(0); ++t) {
      for (std::int64_t e = 0; e < in[0].dim(1); ++e) {
        const double log_p = in[0][{t, e}] - logsumexp(in[0], t);
        total -= std::exp(log_p) * log_p;
      }
    }
    return Arrays{Array({}, total)};
  };
  const auto sample = [](const std::string& what, const Shape& shape) {
    return OpSample{.what = what, .inputs = {{.shape = shape}}};
  };
  entry.samples = {sample("odd sizes", {3, 5}), sample("one token", {1, 17}),
                   sample("one expert", {4, 1}), sample("no tokens", {0, 4}),
                   sample("several pieces", {500, 40})};
  const auto call = [](const Tensor& logits) { return [=] { ops::router_entropy(logits); }; };
  entry.errors = {{"another rank", call(randn({4})), "ShapeError",
                   "router_entropy: logits must be [T, E], got [4]"},
                  {"integers", call(Tensor::zeros({2, 4}, Dtype::kInt64)), "DtypeError",
                   "router_entropy: logits must be float32 or float64, got int64"}};
  return entry;
}

OpEntry z_loss_op() {
  OpEntry entry{.op = "z_loss"};
  entry.run = [](const TensorList& in, const Json&) { return TensorList{ops::z_loss(in[0])}; };
  entry.reference = [](const Arrays& in, const Json&) {
    double total = 0;
    for (std::int64_t t = 0; t < in[0].dim(0); ++t) {
      total += logsumexp(in[0], t) * logsumexp(in[0], t);
    }
    return Arrays{Array({}, in[0].dim(0) > 0 ? total / static_cast<double>(in[0].dim(0)) : 0.0)};
  };
  const auto sample = [](const std::string& what, const Shape& shape, bool large = false) {
    return OpSample{.what = what,
                    .inputs = {{.shape = shape, .saved = true}},
                    .differences = large ? Differences::kOneDirection : Differences::kEveryElement};
  };
  entry.samples = {sample("odd sizes", {3, 5}), sample("one token", {1, 17}),
                   sample("one expert", {4, 1}), sample("no tokens", {0, 4}),
                   sample("several pieces", {500, 40}, true)};
  const auto call = [](const Tensor& logits) { return [=] { ops::z_loss(logits); }; };
  entry.errors = {
      {"another rank", call(randn({4})), "ShapeError", "z_loss: logits must be [T, E], got [4]"},
      {"integers", call(Tensor::zeros({2, 4}, Dtype::kInt64)), "DtypeError",
       "z_loss: logits must be float32 or float64, got int64"}};
  return entry;
}

}  // namespace

std::vector<OpEntry> aux_loss_entries() {
  return {load_balancing_loss_op(), expert_load_op(), balance_share_op(), router_entropy_op(),
          z_loss_op()};
}

}  // namespace moegrad::test
