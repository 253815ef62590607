// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/testing.h"
#include "tools/check_golden/golden_checks.h"
#include "tools/check_golden/golden_compare.h"

namespace moegrad::tools {

inline Tensor golden_values(const std::vector<double>& all, const Shape& shape) {
  return Tensor::from(all, shape);
}

/// Two tokens, three experts with one chosen for each token, three gradients.
struct GoldenSample {
  GoldenCase golden;
  GoldenResults results;
};

inline GoldenSample golden_sample() {
  GoldenSample sample;
  auto& golden = sample.golden;
  golden.config.num_hidden_layers = 1;
  golden.config.num_experts = 3;
  golden.config.num_experts_per_tok = 1;
  auto& expected = golden.expected;
  auto& computed = sample.results.batch;

  expected.losses = {{.loss = 3.0, .ce = 2.0, .aux = 1.0}};
  computed.loss = 3.0;
  computed.ce = 2.0;
  computed.aux = 1.0;
  expected.logits = computed.logits = test::randn({2, 4}, 1);
  expected.hidden = {test::randn({2, 3}, 2), test::randn({2, 3}, 3)};
  computed.hidden = expected.hidden;
  // The second token's best two are 1e-5 apart.
  const Tensor logits = golden_values({0.5, 0.1, -0.2, 0.3, 0.30001, 0.0}, {2, 3});
  const Tensor experts = Tensor::from(std::vector<std::int64_t>{0, 1}, {2, 1});
  const Tensor weights = golden_values({0.5, 0.4}, {2, 1});
  expected.router_logits = {{0, logits}};
  expected.topk_indices = {{0, experts}};
  expected.topk_weights = {{0, weights}};
  expected.tokens_per_expert = {{0, {1, 1, 0}}};
  expected.router_margin = 0.30001 - 0.3;
  computed.routing = {.logits = {logits},
                      .experts = {experts},
                      .weights = {weights},
                      .tokens_per_expert = {{1, 1, 0}}};
  computed.gradients = {
      {"w", test::randn({5, 2}, 4)}, {"r", test::randn({3}, 5)}, {"z", test::randn({2}, 6)}};
  Tensor zero = Tensor::zeros({2}, Dtype::kFloat64);
  computed.gradients[2].tensor = zero;
  expected.gradients = {{"w", computed.gradients[0].tensor},
                        {"r", to_dtype(computed.gradients[1].tensor, Dtype::kFloat32)},
                        {"z", zero}};
  double squares = 0;
  for (const auto& [name, tensor] : computed.gradients) {
    expected.gradient_stats[name] = stats_of(tensor);
    squares += std::pow(stats_of(tensor).l2, 2);
  }
  expected.gradient_l2 = std::sqrt(squares);
  return sample;
}

inline Tensor shifted(const Tensor& tensor, double amount, std::size_t element = 0) {
  Tensor result = clone(tensor);
  result.mutable_data<double>()[element] += amount;
  return result;
}

/// The quantities, without their counts of tensors, that do not hold.
inline std::vector<std::string> failures(const std::vector<GoldenCheck>& checks) {
  std::vector<std::string> failures;
  for (const auto& check : checks) {
    if (!check.holds()) failures.push_back(check.quantity.substr(0, check.quantity.find(" (")));
  }
  return failures;
}

inline std::vector<std::string> failures(const GoldenSample& sample,
                                         Dtype dtype = Dtype::kFloat64) {
  return failures(check_golden(sample.golden, sample.results, dtype));
}

using Names = std::vector<std::string>;

}  // namespace moegrad::tools
