// SPDX-License-Identifier: Apache-2.0
#include "tools/check_golden/golden_routing.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "framework/runtime/error.h"
#include "framework/tensor/fill.h"
#include "ops/elementwise.h"
#include "ops/expert_choice.h"
#include "ops/softmax.h"
#include "tools/check_golden/golden_compare.h"
#include "tools/check_golden/golden_limits.h"

namespace moegrad::tools {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Tensor bias_of(const GoldenRouting& routing, std::size_t layer) {
  return routing.biases.empty() ? Tensor() : routing.biases[layer];
}

/// The gap between the k-th and the next largest value; infinite if there is no next.
double gap_after(std::vector<double> values, std::int64_t k) {
  std::ranges::sort(values, std::greater());
  const auto at = static_cast<std::size_t>(k);
  return k == std::ssize(values) ? kInfinity : values[at - 1] - values[at];
}

/// What a router of groups chooses the experts of a token by, scores with their bias: the smaller
/// one of the gaps between the groups, by the sums of their best two, and between the experts of
/// the best groups.
double gap_in_groups(const std::vector<double>& choices, const models::CausalLMConfig& config) {
  const auto groups = static_cast<std::size_t>(config.n_group);
  const auto in_group = choices.size() / groups;
  std::vector<std::pair<double, std::size_t>> sums;
  for (std::size_t g = 0; g < groups; ++g) {
    std::vector<double> own(choices.begin() + static_cast<std::ptrdiff_t>(g * in_group),
                            choices.begin() + static_cast<std::ptrdiff_t>((g + 1) * in_group));
    std::ranges::sort(own, std::greater());
    sums.emplace_back(own.size() > 1 ? own[0] + own[1] : own[0], g);
  }
  std::ranges::stable_sort(sums, std::greater(), &std::pair<double, std::size_t>::first);
  std::vector<double> group_values, within_reach;
  for (std::size_t i = 0; i < groups; ++i) {
    group_values.push_back(sums[i].first);
    if (i >= static_cast<std::size_t>(config.topk_group)) continue;
    for (std::size_t j = 0; j < in_group; ++j) {
      within_reach.push_back(choices[sums[i].second * in_group + j]);
    }
  }
  return std::min(gap_after(group_values, config.topk_group),
                  gap_after(within_reach, config.num_experts_per_tok));
}

/// What the experts of each token are chosen by: logits [T, E], or what a router of groups or with
/// a bias [E] makes of them.
Tensor choice_values(const Tensor& router_logits, const Tensor& bias,
                     const models::CausalLMConfig& config) {
  const Tensor logits = to_dtype(router_logits.detach(), Dtype::kFloat64);
  if (!bias.defined() && config.n_group == config.topk_group) return logits;
  const bool sigmoid = config.router_scores == nn::RouterScores::kSigmoid;
  const Tensor scores = sigmoid ? ops::sigmoid(logits) : ops::softmax(logits);
  return bias.defined() ? scores + to_dtype(bias, Dtype::kFloat64) : scores;
}

/// How much these values of a token may change before its choice does.
std::vector<double> margins_of(const Tensor& router_logits, const Tensor& bias,
                               const models::CausalLMConfig& config) {
  const Tensor values = choice_values(router_logits, bias, config);
  const auto experts = values.dim(1);
  std::vector<double> margins;
  for (std::int64_t t = 0; t < values.dim(0); ++t) {
    const auto row = values.data<double>().subspan(static_cast<std::size_t>(t * experts),
                                                   static_cast<std::size_t>(experts));
    margins.push_back(gap_in_groups({row.begin(), row.end()}, config));
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
  const Tensor values = to_dtype(weights.detach(), Dtype::kFloat64);
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

/// What a router that is not given its experts chooses: int64 [T, K].
Tensor choices_of(const Tensor& router_logits, const Tensor& bias,
                  const models::CausalLMConfig& config) {
  const Tensor values = choice_values(router_logits, bias, config);
  return ops::choose_experts(values, {.k = config.num_experts_per_tok,
                                      .num_groups = config.n_group,
                                      .topk_groups = config.topk_group});
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
      const Tensor bias = bias_of(routing, mixture);
      const auto own_margins = margins_of(own_logits, bias, config_);
      margin = std::min(margin, *std::ranges::min_element(own_margins));
      const auto* const logits = find(expected_.router_logits, i);
      if (logits != nullptr) logits_.include(max_difference(own_logits, *logits), layer);
      // Without expected logits, the computed ones decide which choices are rounding.
      const auto margins = logits == nullptr ? own_margins : margins_of(*logits, bias, config_);
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
    const auto& routing = computed.routing;
    const Tensor &own_logits = routing.logits[mixture], &own_indices = routing.experts[mixture];
    const Tensor& own_weights = routing.weights[mixture];
    const auto* const indices = find(expected_.topk_indices, i);
    const auto* const weights = find(expected_.topk_weights, i);
    if (indices == nullptr) return;
    // The experts that a run would have chosen if it had not been given its experts.
    const Tensor free_choice = computed.replayed
                                   ? choices_of(own_logits, bias_of(routing, mixture), config_)
                                   : own_indices;
    double other = 0;
    for (std::int64_t t = 0; t < own_indices.dim(0); ++t) {
      const auto own = choice_of(own_indices, own_weights, t);
      const auto expected = choice_of(*indices, weights == nullptr ? own_weights : *weights, t);
      if (choice_of(free_choice, own_weights, t).experts != expected.experts) {
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

  const models::CausalLMConfig& config_;
  const GoldenValues& expected_;
  double margin_limit_;
  Worst logits_, margin_, choices_, weights_, counts_;
};

}  // namespace

RoutingDifference routing_difference(const GoldenRouting& own, const GoldenRouting& reference,
                                     const models::CausalLMConfig& config) {
  for (std::size_t layer = 0; layer < own.experts.size(); ++layer) {
    const auto margins = margins_of(reference.logits[layer], bias_of(reference, layer), config);
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
