// SPDX-License-Identifier: Apache-2.0
// Router, GroupedExperts and MoE.
#include "nn/moe.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "framework/autograd/function.h"
#include "framework/runtime/counters.h"
#include "framework/runtime/rank_context.h"
#include "nn/init.h"
#include "ops/elementwise.h"
#include "ops/nz.h"
#include "ops/router.h"
#include "ops/views.h"
#include "tests/testing.h"

namespace moegrad::nn::moe_test {
namespace {

using namespace test;

constexpr std::int64_t kHidden = 6, kInner = 5, kExperts = 7, kTopK = 2, kTokens = 4;

MoE::Config moe_config(ExpertWeights weights = ExpertWeights::kPretransposed) {
  return {.hidden_size = kHidden,
          .intermediate_size = kInner,
          .num_experts = kExperts,
          .top_k = kTopK,
          .expert_weights = weights,
          .dtype = Dtype::kFloat64};
}

double silu(double x) { return x / (1.0 + std::exp(-x)); }

/// Every token through its experts, with scalar loops; weights as Hugging Face orients them.
std::vector<double> reference(const MoE& moe, const Tensor& x) {
  const auto w = moe.named_parameters();
  const auto gate = w[0].tensor.data<double>();
  const auto gate_up = w[1].tensor.data<double>();
  const auto down = w[2].tensor.data<double>();
  const auto values = x.data<double>();
  std::vector<double> y(static_cast<std::size_t>(x.numel()), 0.0);
  const auto dot = [&](std::span<const double> matrix, std::int64_t row, const double* vector,
                       std::int64_t n) {
    double sum = 0.0;
    for (std::int64_t i = 0; i < n; ++i)
      sum += matrix[static_cast<std::size_t>(row * n + i)] * vector[i];
    return sum;
  };
  for (std::int64_t t = 0; t < x.dim(0); ++t) {
    const double* const token = values.data() + t * kHidden;
    std::vector<std::pair<double, std::int64_t>> scores;  // (-exp(logit), expert)
    for (std::int64_t e = 0; e < kExperts; ++e) {
      scores.emplace_back(-std::exp(dot(gate, e, token, kHidden)), e);
    }
    std::ranges::sort(scores);
    double total = 0.0;
    for (std::int64_t j = 0; j < kTopK; ++j) total += scores[static_cast<std::size_t>(j)].first;
    for (std::int64_t j = 0; j < kTopK; ++j) {
      const auto [score, e] = scores[static_cast<std::size_t>(j)];
      std::vector<double> hidden;
      for (std::int64_t i = 0; i < kInner; ++i) {
        const auto row = e * 2 * kInner + i;
        hidden.push_back(silu(dot(gate_up, row, token, kHidden)) *
                         dot(gate_up, row + kInner, token, kHidden));
      }
      for (std::int64_t h = 0; h < kHidden; ++h) {
        y[static_cast<std::size_t>(t * kHidden + h)] +=
            score / total * dot(down, e * kHidden + h, hidden.data(), kInner);
      }
    }
  }
  return y;
}

TEST(MoE, HasStackedParametersInBothOrientations) {
  const MoE in_first(moe_config()), out_first(moe_config(ExpertWeights::kHuggingFace));
  const auto a = in_first.parameter_slots(), b = out_first.parameter_slots();
  ASSERT_EQ(a.size(), 3U);
  EXPECT_EQ(a[0].name, "gate.weight");
  EXPECT_EQ(a[1].name, "experts.gate_up_proj");
  EXPECT_EQ(a[2].name, "experts.down_proj");
  EXPECT_EQ(a[1].tensor->shape(), (Shape{kExperts * kHidden, 2 * kInner}));
  EXPECT_EQ(a[2].tensor->shape(), (Shape{kExperts * kInner, kHidden}));
  EXPECT_EQ(b[1].tensor->shape(), (Shape{kExperts * 2 * kInner, kHidden}));
  EXPECT_EQ(b[2].tensor->shape(), (Shape{kExperts * kHidden, kInner}));
  EXPECT_EQ(a[1].layout.role, ParameterLayout::Role::kExpertGateUp);
  EXPECT_EQ(a[2].layout.role, ParameterLayout::Role::kExpertDown);
  EXPECT_EQ(a[1].layout.stacked, (Shape{kExperts, kHidden, 2 * kInner}));
  EXPECT_EQ(b[1].layout.stacked, (Shape{kExperts, 2 * kInner, kHidden}));
  EXPECT_TRUE(a[1].layout.in_first);
  EXPECT_FALSE(b[1].layout.in_first);
  EXPECT_EQ(a[0].layout.role, ParameterLayout::Role::kDense);
}

TEST(MoE, AgreesWithScalarLoops) {
  MoE out_first(moe_config(ExpertWeights::kHuggingFace)), in_first(moe_config());
  init_weights(out_first, 2, 0.7);
  init_weights(in_first, 2, 0.7);
  const Tensor x = randn({kTokens, kHidden});
  const Tensor expected = Tensor::from(reference(out_first, x), x.shape());
  EXPECT_TRUE(all_close(out_first(x).hidden, expected, 1e-12, 1e-12));
  EXPECT_TRUE(bitwise_equal(in_first(x).hidden, out_first(x).hidden));
}

TEST(MoE, ReturnsWhatTheRouterDid) {
  MoE moe(moe_config());
  init_weights(moe, 2, 0.7);
  const auto output = moe(randn({kTokens, kHidden}));
  EXPECT_EQ(output.router_logits.shape(), (Shape{kTokens, kExperts}));
  EXPECT_EQ(output.expert_indices.shape(), (Shape{kTokens, kTopK}));
  const auto chosen = ops::topk_softmax(output.router_logits, kTopK, true);
  EXPECT_TRUE(bitwise_equal(output.routing_weights, chosen.weights));
  std::vector<std::int64_t> counts(kExperts);
  for (const auto expert : output.expert_indices.data<std::int64_t>()) {
    ++counts[static_cast<std::size_t>(expert)];
  }
  EXPECT_EQ(output.tokens_per_expert, counts);
}

TEST(MoE, GradientsMatchFiniteDifferences) {
  auto one_expert = moe_config();
  one_expert.top_k = 1;
  one_expert.norm_topk_prob = false;
  for (const auto& config : {moe_config(), moe_config(ExpertWeights::kHuggingFace), one_expert}) {
    MoE moe(config);
    init_weights(moe, 2, 0.7);
    TensorList inputs = {variable({kTokens, kHidden})};
    for (const auto& item : moe.named_parameters()) inputs.push_back(item.tensor);
    EXPECT_TRUE(gradients_agree(
        [&](const TensorList& in) -> TensorList {
          const auto output = moe(in[0]);
          return {output.hidden, output.router_logits};
        },
        inputs));
  }
}

TEST(MoE, PretransposedExpertsTransposeNothing) {
  MoE moe(moe_config());
  init_weights(moe, 2, 0.7);
  auto& counters = RankContext::current().counters();
  const auto transposes = counters.materialized_transposes.load();
  moe(variable({kTokens, kHidden})).hidden.backward(randn({kTokens, kHidden}, 3));
  EXPECT_EQ(counters.materialized_transposes.load(), transposes);
}

TEST(MoE, ReadsFractalNzWeightsWithTheSameBits) {
  MoE moe(moe_config());
  init_weights(moe, 2, 0.7);
  const Tensor x = randn({kTokens, kHidden});
  const Tensor expected = moe(x).hidden;
  for (const auto& slot : moe.parameter_slots()) {  // as fully_shard swaps gathered weights in
    if (slot.layout.stacked.ndim() == 0) continue;
    const Tensor stacked = ops::view(slot.tensor->detach(), slot.layout.stacked);
    *slot.tensor = Tensor::nz_view(ops::nd_to_nz(stacked), slot.tensor->shape());
  }
  EXPECT_TRUE(bitwise_equal(moe(x).hidden, expected));
}

TEST(MoE, NodesAreWhatForwardRuns) {
  MoE moe(moe_config());
  init_weights(moe, 2, 0.7);
  const Tensor x = randn({kTokens, kHidden});
  const auto routed = moe.route(x);
  const auto dispatched = moe.dispatch(x, routed);
  EXPECT_EQ(dispatched.rows.shape(), (Shape{kTokens * kTopK, kHidden}));
  const auto whole = moe(x);
  EXPECT_EQ(dispatched.tokens_per_expert, whole.tokens_per_expert);
  EXPECT_TRUE(bitwise_equal(moe.combine(moe.experts(dispatched), dispatched), whole.hidden));
}

TEST(MoE, RefusesNodesOutOfOrder) {
  MoE moe(moe_config());
  const Tensor x = randn({kTokens, kHidden});
  const auto routed = moe.route(x);
  const auto dispatched = moe.dispatch(x, routed);
  const auto message = [](std::string_view node, std::string_view before) {
    return "MoE: nodes must be called in the order route, dispatch, experts, combine; got " +
           std::string(node) + " without the result of " + std::string(before);
  };
  EXPECT_EQ(message_of<Error>([&] { moe.dispatch(x, {}); }), message("dispatch", "route"));
  EXPECT_EQ(message_of<Error>([&] { moe.experts({}); }), message("experts", "dispatch"));
  EXPECT_EQ(message_of<Error>([&] { moe.combine(x, {}); }), message("combine", "dispatch"));
  EXPECT_EQ(message_of<Error>([&] { moe.combine({}, dispatched); }), message("combine", "experts"));
  auto others = dispatched;
  others.metadata = std::make_shared<DispatchMetadata>();  // of no kind that it knows
  EXPECT_EQ(message_of<Error>([&] { moe.combine(moe.experts(dispatched), others); }),
            "LocalTokenDispatcher: must combine rows that it has dispatched, got those of another; "
            "in module combine");
}

TEST(MoE, NodesAreModulesWithHooksOfTheirOwn) {
  MoE moe(moe_config());
  init_weights(moe, 2, 0.7);
  std::vector<std::string> events;
  for (const auto& [name, module] : moe.named_modules()) {
    const auto path = name.empty() ? "moe" : name;
    module->register_forward_pre_hook([&, path](Module&) { events.push_back(path); });
    module->register_backward_pre_hook([&, path](Module&) { events.push_back("d " + path); });
  }
  moe(variable({kTokens, kHidden})).hidden.backward(randn({kTokens, kHidden}));
  EXPECT_EQ(events,
            (std::vector<std::string>{"moe", "gate", "dispatcher", "experts", "combine", "d moe",
                                      "d combine", "d experts", "d dispatcher", "d gate"}));
  EXPECT_EQ(moe.named_parameters().size(), 3U);
}

/// Each row's weight travels with it.
TEST(LocalTokenDispatcher, GroupsRowsAndTheirWeightsByExpert) {
  LocalTokenDispatcher dispatcher(3);
  const Tensor x = variable({2, 4}, 1);
  const Tensor weights = Tensor::from(std::vector<double>{0.1, 0.2, 0.3, 0.4}, {2, 2});
  const Tensor chosen = Tensor::from(std::vector<std::int64_t>{2, 0, 0, 1}, {2, 2});
  const auto dispatched = dispatcher(x, {.logits = {}, .weights = weights, .indices = chosen});
  // Expert 0: tokens 0 and 1; expert 1: token 1; expert 2: token 0.
  EXPECT_EQ(dispatched.groups.counts(), (std::vector<std::int64_t>{2, 1, 1}));
  EXPECT_EQ(dispatched.groups.offsets(), (std::vector<std::int64_t>{0, 2, 3, 4}));
  EXPECT_EQ(dispatched.tokens_per_expert, dispatched.groups.counts());
  EXPECT_TRUE(bitwise_equal(dispatched.weights,
                            Tensor::from(std::vector<double>{0.2, 0.3, 0.4, 0.1}, {4})));
  const std::int64_t token_of_row[] = {0, 1, 1, 0};
  for (std::int64_t row = 0; row < 4; ++row) {
    EXPECT_TRUE(bitwise_equal(clone(Tensor::narrow(dispatched.rows.detach(), 0, row, 1)),
                              clone(Tensor::narrow(x.detach(), 0, token_of_row[row], 1))));
  }
  const Tensor twice = dispatcher.combine(dispatched.rows, dispatched);
  EXPECT_TRUE(bitwise_equal(twice.detach(), (x + x).detach()));
}

/// Counts its calls.
class Counting final : public TokenDispatcher {
 public:
  explicit Counting(std::int64_t num_experts) : local_(num_experts) {}
  DispatchedRows dispatch(const Tensor& x, const Router::Output& routed) override {
    ++calls;
    return local_.dispatch(x, routed);
  }
  Tensor combine(const Tensor& rows, const DispatchedRows& dispatched) override {
    ++calls;
    return local_.combine(rows, dispatched);
  }
  int calls = 0;

 private:
  LocalTokenDispatcher local_;
};

TEST(MoE, TakesAnotherDispatcherFromOutside) {
  MoE moe(moe_config());
  init_weights(moe, 2, 0.7);
  const Tensor x = randn({kTokens, kHidden});
  const Tensor expected = moe(x).hidden;
  const auto own = std::make_shared<Counting>(kExperts);
  moe.set_dispatcher(own);
  EXPECT_TRUE(bitwise_equal(moe(x).hidden, expected));
  EXPECT_EQ(own->calls, 2);
  const auto modules = moe.named_modules();
  EXPECT_EQ(std::ranges::count(modules, std::pair<std::string, Module*>("dispatcher", own.get())),
            1);
  EXPECT_EQ(modules.size(), 5U);
  EXPECT_EQ(message_of<ValueError>([&] { moe.set_dispatcher(nullptr); }),
            "MoE: must be given a dispatcher, got null");
}

/// Two layers of one model.
class TwoMixtures final : public Callable<TwoMixtures> {
 public:
  TwoMixtures() {
    register_module("0", first);
    register_module("1", second);
  }
  Tensor forward(const Tensor& x) { return second(first(x).hidden).hidden; }
  MoE first{moe_config()}, second{moe_config()};
};

TEST(MoE, TakesADispatcherWhileTheOneBeforeLivesOn) {
  TwoMixtures layers;
  const auto one = std::make_shared<Counting>(kExperts), two = std::make_shared<Counting>(kExperts);
  layers.first.set_dispatcher(one);
  layers.first.set_dispatcher(two);
  layers.first.set_dispatcher(two);
  layers.second.set_dispatcher(one);  // it is free
  EXPECT_TRUE(message_of<ValueError>([&] { layers.first.set_dispatcher(one); })
                  .starts_with("register_module: 'dispatcher' of module '0' is registered as "
                               "'1.dispatcher' already"));
  layers(randn({kTokens, kHidden}));
  EXPECT_EQ(one->calls, 2);
  EXPECT_EQ(two->calls, 2);
}

TEST(MoE, KeepsNoOutputOfItsExperts) {
  MoE moe(moe_config());
  init_weights(moe, 2, 0.7);
  const auto combine = moe(variable({kTokens, kHidden})).hidden.grad_fn();
  EXPECT_EQ(combine->saved_bytes(), kTokens * kTopK * 8) << "more than where each row goes";
}

TEST(MoE, TakesReplayedExperts) {
  MoE moe(moe_config());
  init_weights(moe, 2, 0.7);
  const Tensor x = randn({2, kHidden});
  const Tensor replay = Tensor::from(std::vector<std::int64_t>{6, 0, 3, 2}, {2, kTopK});
  const auto output = moe(x, replay);
  EXPECT_TRUE(bitwise_equal(output.expert_indices, replay));
  EXPECT_EQ(output.tokens_per_expert, (std::vector<std::int64_t>{1, 0, 1, 1, 0, 0, 1}));
}

TEST(MoE, WorksOnNoTokens) {
  MoE moe(moe_config());
  const auto output = moe(variable({0, kHidden}));
  EXPECT_EQ(output.hidden.shape(), (Shape{0, kHidden}));
  EXPECT_EQ(output.tokens_per_expert, std::vector<std::int64_t>(kExperts, 0));
}

TEST(MoE, RejectsConfigurationsThatCannotBe) {
  auto config = moe_config();
  config.top_k = 8;
  EXPECT_EQ(message_of<ValueError>([&] { MoE{config}; }),
            "Router: top_k must be in [1, 7] (num_experts), got 8");
}

TEST(ExpertBlocks, AreTheExpertsOfEachStackedParameter) {
  for (const auto weights : {ExpertWeights::kPretransposed, ExpertWeights::kHuggingFace}) {
    const MoE moe(moe_config(weights));
    EXPECT_EQ(expert_blocks(moe),
              (std::map<std::string, std::int64_t>{{"experts.down_proj", kExperts},
                                                   {"experts.gate_up_proj", kExperts}}));
  }
  EXPECT_TRUE(expert_blocks(Router({.hidden_size = 2, .num_experts = 3, .top_k = 1})).empty());
}

}  // namespace
}  // namespace moegrad::nn::moe_test
