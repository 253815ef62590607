// SPDX-License-Identifier: Apache-2.0
// What it costs to put a model together, counted: of four times as many layers four times as much;
// and to call it: no string, however far below the root the module is.
// A program of its own: it replaces operator new.
#include <gtest/gtest.h>

#include <memory>

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

/// Calls what is below it, if anything is.
class Link final : public Callable<Link> {
 public:
  explicit Link(int below) {
    if (below == 0) return;
    below_ = std::make_unique<Link>(below - 1);
    register_module("a_name_for_which_a_string_needs_memory", *below_);
  }
  Tensor forward(const Tensor& x) { return below_ ? (*below_)(x) : x; }
  Link& last() { return below_ ? below_->last() : *this; }

 private:
  std::unique_ptr<Link> below_;
};

TEST(CallCost, IsWithoutAStringForThePath) {
  const Tensor x = Tensor::zeros({1});
  const auto news_of_second = [&](Link& chain, const auto& call) {
    call(chain);
    return news_of([&] { call(chain); });
  };
  Link root(0), two(1), nine(8);
  const auto call_last = [&](Link& chain) { chain.last()(x); };
  EXPECT_EQ(news_of_second(two, call_last), news_of_second(root, call_last));
  EXPECT_EQ(news_of_second(nine, call_last), news_of_second(root, call_last));
  const auto by_root = [&](Link& chain) {
    const auto body = [](Link& top, const Tensor& passed) { return top.last()(passed); };
    chain.call_method(body, x);
  };
  EXPECT_EQ(news_of_second(nine, by_root), news_of_second(two, by_root));
}

}  // namespace
}  // namespace moegrad::nn::registration_cost_test
