// SPDX-License-Identifier: Apache-2.0
#include "tools/check_golden/golden_routing.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

#include "framework/runtime/error.h"
#include "framework/tensor/fill.h"
#include "tools/check_golden/golden_compare.h"
#include "tools/check_golden/golden_limits.h"

namespace moegrad::tools {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The gap between the k-th and the next largest value of each row; infinite if there is no next.
std::vector<double> margins_of(const Tensor& router_logits, std::int64_t k) {
  const Tensor values = to_dtype(router_logits, Dtype::kFloat64);
  const auto experts = values.dim(1);
  std::vector<double> margins;
  for (std::int64_t t = 0; t < values.dim(0); ++t) {
    const auto row = values.data<double>().subspan(static_cast<std::size_t>(t * experts),
                                                   static_cast<std::size_t>(experts));
    std::vector<double> sorted(row.begin(), row.end());
    std::ranges::sort(sorted, std::greater());
    const auto at = static_cast<std::size_t>(k);
    margins.push_back(k == experts ? kInfinity : sorted[at - 1] - sorted[at]);
  }
  return margins;
}

/// A token's experts by rising index, with their weights. The order of the k experts is not
/// compared.
struct Choice {
  std::vector<std::int64_t> experts;
  std::vector<double> weights;
};

Choice choice_of(const Tensor& indices, const Tensor& weights, std::int64_t token) {
  const Tensor values = to_dtype(weights, Dtype::kFloat64);
  std::vector<std::pair<std::int64_t, double>> pairs;
  for (auto i = token * indices.dim(1); i < (token + 1) * indices.dim(1); ++i) {
    const auto at = static_cast<std::size_t>(i);
    pairs.emplace_back(indices.data<std::int64_t>()[at], values.data<double>()[at]);
  }
  std::ranges::sort(pairs);
  Choice choice;
  for (const auto& [expert, weight] : pairs) {
    choice.experts.push_back(expert);
    choice.weights.push_back(weight);
  }
  return choice;
}

/// Null if a folder has nothing for a layer.
template <class Value>
const Value* find(const std::map<std::int64_t, Value>& by_layer, std::int64_t layer) {
  const auto found = by_layer.find(layer);
  return found == by_layer.end() ? nullptr : &found->second;
}

/// The k largest of a row, in the form of Choice::experts.
std::vector<std::int64_t> largest(const Tensor& router_logits, std::int64_t token, std::int64_t k) {
  const Tensor values = to_dtype(router_logits, Dtype::kFloat64);
  const auto row = values.data<double>().subspan(static_cast<std::size_t>(token * values.dim(1)));
  std::vector<std::int64_t> experts(static_cast<std::size_t>(values.dim(1)));
  std::iota(experts.begin(), experts.end(), 0);
  std::ranges::stable_sort(experts, std::greater(), [&](std::int64_t expert) {
    return row[static_cast<std::size_t>(expert)];
  });
  experts.resize(static_cast<std::size_t>(k));
  std::ranges::sort(experts);
  return experts;
}

class RoutingChecks {
 public:
  RoutingChecks(const GoldenCase& golden, const GoldenValues& expected, Dtype dtype)
      : config_(golden.config),
        expected_(expected),
        margin_limit_(dtype == Dtype::kFloat32 ? kFloat32RouterMargin : 0.0) {}

  void add(const GoldenComputed& computed) {
    const auto& routing = computed.routing;
    std::size_t mixture = 0;
    double margin = kInfinity;
    for (std::int64_t i = 0; i < config_.num_hidden_layers; ++i) {
      if (!config_.is_moe_layer(i)) continue;
      const auto layer = "layer " + std::to_string(i);
      const Tensor& own_logits = routing.logits[mixture];
      const auto own_margins = margins_of(own_logits, config_.num_experts_per_tok);
      margin = std::min(margin, *std::ranges::min_element(own_margins));
      const auto* const logits = find(expected_.router_logits, i);
      if (logits != nullptr) logits_.include(max_difference(own_logits, *logits), layer);
      // Without expected logits, the computed ones decide which choices are rounding.
      const auto margins =
          logits == nullptr ? own_margins : margins_of(*logits, config_.num_experts_per_tok);
      compare_choices(i, layer, margins, computed, mixture);
      compare_counts(i, margins, routing.tokens_per_expert[mixture]);
      ++mixture;
    }
    if (expected_.router_margin && margin < kInfinity) {
      margin_.include(std::abs(margin - *expected_.router_margin));
    }
  }

  std::vector<GoldenCheck> checks(const GoldenLimits& limits, const std::string& prefix) const {
    std::vector<GoldenCheck> checks;
    if (!expected_.router_logits.empty()) {
      checks.push_back(logits_.check(prefix + "router logits", limits.router_logits));
    }
    if (expected_.router_margin) {
      checks.push_back(margin_.check(prefix + "router margin", limits.router_margin));
    }
    if (!expected_.topk_indices.empty()) {
      checks.push_back(choices_.check(prefix + "top-k experts, other tokens' choices", 0));
    }
    if (!expected_.topk_weights.empty()) {
      checks.push_back(weights_.check(prefix + "top-k weights", limits.router_logits));
    }
    if (!expected_.tokens_per_expert.empty()) {
      checks.push_back(counts_.check(prefix + "tokens per expert", 0));
    }
    return checks;
  }

 private:
  void compare_choices(std::int64_t i, const std::string& layer, const std::vector<double>& margins,
                       const GoldenComputed& computed, std::size_t mixture) {
    const auto& [all_logits, experts, all_weights, counts] = computed.routing;
    const Tensor &own_logits = all_logits[mixture], &own_indices = experts[mixture];
    const Tensor& own_weights = all_weights[mixture];
    const auto* const indices = find(expected_.topk_indices, i);
    const auto* const weights = find(expected_.topk_weights, i);
    if (indices == nullptr) return;
    double other = 0;
    for (std::int64_t t = 0; t < own_indices.dim(0); ++t) {
      const auto own = choice_of(own_indices, own_weights, t);
      const auto expected = choice_of(*indices, weights == nullptr ? own_weights : *weights, t);
      // The experts that a run would have chosen if it had not been given its experts.
      const auto chosen =
          computed.replayed ? largest(own_logits, t, own_indices.dim(1)) : own.experts;
      if (chosen != expected.experts) {
        other += margins[static_cast<std::size_t>(t)] > margin_limit_ ? 1 : 0;
      }
      if (own.experts != expected.experts) continue;
      for (std::size_t j = 0; j < own.weights.size() && weights != nullptr; ++j) {
        weights_.include(std::abs(own.weights[j] - expected.weights[j]), layer);
      }
    }
    choices_.include(other, layer);
  }

  /// Compares the counts. Tokens whose choice is rounding may have gone to other experts.
  void compare_counts(std::int64_t i, const std::vector<double>& margins,
                      const std::vector<std::int64_t>& own) {
    const auto* const counts = find(expected_.tokens_per_expert, i);
    if (counts == nullptr) return;
    check<ValueError>(counts->size() == own.size(), "the folder's tokens_per_expert must be of ",
                      own.size(), " experts, got ", counts->size());
    double moved = 0;
    for (std::size_t e = 0; e < own.size(); ++e) {
      moved += 0.5 * std::abs(static_cast<double>(own[e] - (*counts)[e]));
    }
    const auto may_move =
        std::ranges::count_if(margins, [&](double margin) { return margin <= margin_limit_; });
    counts_.include(std::max(0.0, moved - static_cast<double>(may_move)),
                    "layer " + std::to_string(i));
  }

  const models::Qwen3MoeConfig& config_;
  const GoldenValues& expected_;
  double margin_limit_;
  Worst logits_, margin_, choices_, weights_, counts_;
};

}  // namespace

RoutingDifference routing_difference(const GoldenRouting& own, const GoldenRouting& reference) {
  for (std::size_t layer = 0; layer < own.experts.size(); ++layer) {
    const auto margins = margins_of(reference.logits[layer], own.experts[layer].dim(1));
    bool parted = false;
    for (std::int64_t t = 0; t < own.experts[layer].dim(0); ++t) {
      const auto choice = choice_of(own.experts[layer], own.weights[layer], t).experts;
      if (choice == choice_of(reference.experts[layer], reference.weights[layer], t).experts) {
        continue;
      }
      parted = true;
      if (margins[static_cast<std::size_t>(t)] > kFloat32RouterMargin)
        return RoutingDifference::kOther;
    }
    if (parted) return RoutingDifference::kRounding;
  }
  return RoutingDifference::kNone;
}

std::vector<GoldenCheck> check_routing(const GoldenCase& golden, const GoldenValues& expected,
                                       const GoldenComputed& computed, Dtype dtype,
                                       const std::string& prefix) {
  RoutingChecks routing(golden, expected, dtype);
  routing.add(computed);
  return routing.checks(limits_of(dtype), prefix);
}

}  // namespace moegrad::tools
