// SPDX-License-Identifier: Apache-2.0
// What it costs to put a model together, counted: of four times as many layers four times as much.
// A program of its own: it replaces operator new.
#include <gtest/gtest.h>

#include "framework/tensor/meta.h"
#include "nn/linear.h"
#include "nn/module_list.h"
#include "tests/models/causal_lm/toy_models.h"
#include "tests/new_calls.h"

namespace moegrad::nn::registration_cost_test {
namespace {

template <class Body>
double news_of(const Body& body) {
  const auto before = test::new_calls().calls;
  body();
  return static_cast<double>(test::new_calls().calls - before);
}

template <class Make>
void expect_proportional(const Make& make) {
  news_of([&] { make(8); });
  const double few = news_of([&] { make(64); }), many = news_of([&] { make(256); });
  EXPECT_LT(many, 4.4 * few);
}

TEST(RegistrationCost, GrowsWithTheNumberOfModules) {
  expect_proportional([](std::int64_t layers) {
    ModuleList<Linear> list;
    for (std::int64_t i = 0; i < layers; ++i) {
      list.emplace_back({.in_features = 1, .out_features = 1, .bias = true});
    }
  });
}

TEST(RegistrationCost, GrowsWithTheNumberOfLayersOfAModel) {
  expect_proportional([](std::int64_t layers) {
    auto config = test::toy_config();
    config.num_hidden_layers = layers;
    config.tie_word_embeddings = true;
    const MetaGuard meta;
    const models::CausalLM model(config);
    EXPECT_EQ(model.named_parameters()[1].tensor.storage().name(),
              "model.layers.0.self_attn.q_proj.weight");
  });
}

}  // namespace
}  // namespace moegrad::nn::registration_cost_test
