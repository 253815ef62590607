// SPDX-License-Identifier: Apache-2.0

// A whole model kept in one dtype and computed with in another.

#include <array>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "framework/distributed/shard_runs.h"
#include "fsdp/fully_shard.h"
#include "models/causal_lm/loss.h"
#include "nn/experts.h"
#include "nn/linear.h"
#include "tests/fsdp/models.h"

namespace moegrad::compute_dtype_test {
namespace {

TEST(ComputeDtype, AModelOfFloat64ComputesInFloat32LikeOneOfFloat32) {
  auto config = test::sharded_toy_config();
  const auto batch = test::toy_batches(0, 1, config.vocab_size)[0];
  const auto loss_of = [&](models::CausalLM& model) {
    return models::causal_lm_loss(model(batch.tokens, batch.documents), batch.targets, 16, 0.001)
        .objective;
  };
  models::CausalLM single(config, 3);
  const Tensor expected = loss_of(single);
  expected.backward();

  config.dtype = Dtype::kFloat64;
  launch(2, [&](RankContext& rank) {
    models::CausalLM model(config, 3);
    const auto mesh = DeviceMesh::flat(rank.group());
    const fsdp::Policy policy = {.mixed_precision = {.param_dtype = Dtype::kFloat32}};
    for (auto& layer : model.layers()) fsdp::fully_shard(layer, mesh, policy);
    fsdp::fully_shard(model, mesh, policy);
    const Tensor loss = loss_of(model);
    EXPECT_EQ(loss.dtype(), Dtype::kFloat32);
    EXPECT_EQ(loss.item(), expected.item());
    loss.backward();
    const auto reference = single.named_parameters();
    const auto sharded = model.named_parameters();
    for (std::size_t i = 0; i < sharded.size(); ++i) {
      const auto& [name, parameter] = sharded[i];
      EXPECT_EQ(parameter.dtype(), Dtype::kFloat64) << name;
      ASSERT_EQ(parameter.grad().dtype(), Dtype::kFloat64) << name;
      // Two ranks with the same loss.
      Tensor sum = clone(reference[i].tensor.grad());
      add_(sum, reference[i].tensor.grad());
      const Tensor rows =
          clone(shard_view(to_dtype(sum, Dtype::kFloat64), *parameter.shard_spec()));
      EXPECT_TRUE(test::bitwise_equal(parameter.grad(), rows)) << name;
    }
  });
}

constexpr auto kBf16 = Dtype::kBFloat16;

Tensor objective_of(models::CausalLM& model, const training::MicroBatch& batch,
                    const std::vector<Tensor>& replay = {}, bool fused = false) {
  models::CausalLM::ForwardOptions options;
  if (!replay.empty()) options.replay_expert_indices = replay;
  if (fused) options.targets = batch.targets;
  const auto output = model(batch.tokens, batch.documents, options);
  for (const auto& logits : output.router_logits) EXPECT_EQ(logits.dtype(), Dtype::kFloat32);
  return models::causal_lm_loss(output, batch.targets, 16, 0.001).objective;
}

models::CausalLMConfig float32_config_of(models::ModelType type) {
  auto config = test::toy_config_of(type);
  config.dtype = Dtype::kFloat32;
  return config;
}

double norm_of(const Tensor& tensor) {
  double sum = 0;
  for (const auto value : tensor.data<float>()) sum += static_cast<double>(value) * value;
  return std::sqrt(sum);
}

// With the experts that float32 chooses, since rounding may change a choice.
TEST(ComputeDtype, GradientsInBFloat16AreThoseOfFloat32WithinItsRounding) {
  for (const auto type : test::kModelTypes) {
    auto config = float32_config_of(type);
    config.initializer_range = 0.1;
    const auto batch = test::toy_batches(0, 1, config.vocab_size)[0];
    models::CausalLM wide(config, 3), narrow(config, 3);
    narrow.compute_in(kBf16);
    const auto experts = wide(batch.tokens, batch.documents).expert_indices;
    const Tensor expected = objective_of(wide, batch, experts);
    const Tensor loss = objective_of(narrow, batch, experts);
    EXPECT_EQ(loss.dtype(), Dtype::kFloat32);
    EXPECT_NE(loss.item(), expected.item());
    EXPECT_NEAR(loss.item(), expected.item(), 0.005 * expected.item());
    expected.backward();
    loss.backward();
    const auto reference = wide.named_parameters(), computed = narrow.named_parameters();
    for (std::size_t i = 0; i < computed.size(); ++i) {
      const auto& [name, parameter] = computed[i];
      ASSERT_EQ(parameter.grad().dtype(), Dtype::kFloat32) << name;
      const auto size = norm_of(reference[i].tensor.grad());
      const Tensor difference = parameter.grad() - reference[i].tensor.grad();
      EXPECT_LE(norm_of(difference), 0.05 * size) << name;
      EXPECT_EQ(norm_of(difference) > 0, size > 0) << name;
    }
  }
}

// Class E0: the same policy without fully_shard, and with it on one rank and on two.
TEST(ComputeDtype, BFloat16WithoutFullyShardHasTheBitsOfFullyShard) {
  for (const auto type : test::kModelTypes) {
    for (const bool fused : {false, true}) {
      for (const bool tied : {false, true}) {
        auto config = float32_config_of(type);
        config.tie_word_embeddings = tied;
        const auto batch = test::toy_batches(0, 1, config.vocab_size)[0];
        models::CausalLM plain(config, 3);
        plain.compute_in(kBf16);
        const Tensor expected = objective_of(plain, batch, {}, fused);
        expected.backward();
        for (const int ranks : {1, 2}) {
          launch(ranks, [&](RankContext& rank) {
            models::CausalLM model(config, 3);
            const auto mesh = DeviceMesh::flat(rank.group());
            const fsdp::Policy policy = {.mixed_precision = {.param_dtype = kBf16}};
            training::shard_model(model, mesh, policy);
            const Tensor loss = objective_of(model, batch, {}, fused);
            EXPECT_EQ(loss.item(), expected.item());
            loss.backward();
            const auto reference = plain.named_parameters(), sharded = model.named_parameters();
            for (std::size_t i = 0; i < sharded.size(); ++i) {
              const auto& [name, parameter] = sharded[i];
              EXPECT_EQ(parameter.dtype(), Dtype::kFloat32) << name;
              Tensor sum = clone(reference[i].tensor.grad());
              if (ranks == 2) add_(sum, reference[i].tensor.grad());
              const Tensor own = clone(shard_view(sum, *parameter.shard_spec()));
              EXPECT_TRUE(test::bitwise_equal(parameter.grad(), own)) << name;
            }
          });
        }
      }
    }
  }
}

// What travels: weights of products in bfloat16, all else in float32.
TEST(ComputeDtype, WeightsOfProductsAloneAreGatheredInBFloat16) {
  const auto config = test::sharded_toy_config();
  launch(1, [&](RankContext& rank) {
    models::CausalLM model(config, 3);
    auto& layer = model.layers()[0];
    const fsdp::Policy policy = {.mixed_precision = {.param_dtype = kBf16}};
    auto& state = fsdp::fully_shard(layer, DeviceMesh::flat(rank.group()), policy);
    state.unshard();
    int products = 0;
    for (const auto& slot : layer.parameter_slots()) {
      const bool product = slot.layout.role != nn::ParameterLayout::Role::kDense;
      products += product ? 1 : 0;
      EXPECT_EQ(slot.tensor->dtype(), product ? kBf16 : Dtype::kFloat32) << slot.name;
      EXPECT_EQ(slot.tensor->layout(), product ? Layout::kNZ : Layout::kND) << slot.name;
    }
    EXPECT_EQ(products, 6);
    EXPECT_EQ(state.groups().size(), 2);
  });
}

// Linear layers, which store [out, in], and experts, which store [in, out] or [out, in].
class Products final : public nn::Callable<Products> {
 public:
  Products() {
    for (auto& linear : linears) linear = std::make_shared<nn::Linear>(nn::Linear::Config{20, 20});
    for (const auto weights :
         {nn::ExpertWeights::kPretransposed, nn::ExpertWeights::kHuggingFace}) {
      experts.push_back(std::make_shared<nn::GroupedExperts>(nn::GroupedExperts::Config{
          .hidden_size = 20, .intermediate_size = 12, .num_experts = 2, .weights = weights}));
    }
    for (std::size_t i = 0; i < 2; ++i) {
      register_module("linear" + std::to_string(i), *linears[i]);
      register_module("experts" + std::to_string(i), *experts[i]);
    }
  }
  Tensor forward(const Tensor& x) {
    Tensor y = x;
    for (auto& linear : linears) y = (*linear)(y);
    for (auto& each : experts) y = (*each)(y, Tensor::ones({9}), ops::RowGroups(1, {4, 5}));
    return y;
  }
  std::array<std::shared_ptr<nn::Linear>, 2> linears;
  std::vector<std::shared_ptr<nn::GroupedExperts>> experts;
};

// Whether prefetched or not, so that no product packs a weight.
TEST(ComputeDtype, EachGatherWritesTheFormThatTheNextProductsRead) {
  for (const bool prefetched : {false, true}) {
    launch(2, [&](RankContext& rank) {
      const auto mesh = DeviceMesh::flat(rank.group());
      const fsdp::Policy policy = {.mixed_precision = {.param_dtype = kBf16},
                                   .forward_prefetch = prefetched ? 1 : 0};
      Products model;
      std::vector<nn::Module*> modules;
      for (auto& linear : model.linears) modules.push_back(linear.get());
      for (auto& experts : model.experts) modules.push_back(experts.get());
      modules.push_back(&model);
      for (auto* module : modules) {
        auto& state = fsdp::fully_shard(*module, mesh, policy);
        if (!prefetched) state.set_modules_to_backward_prefetch({});
      }
      const Tensor x = test::randn({9, 20}, 1, Dtype::kFloat32, true);
      for (int step = 0; step < 3; ++step) {
        model(x).backward(Tensor::ones({9, 20}, kBf16));
        EXPECT_EQ(rank.counters().packed_panels, 0) << step;
        EXPECT_EQ(rank.counters().transposed_packs, 0) << step;
      }
    });
  }
}

// What compute_in() has said before counts.
TEST(ComputeDtype, FullyShardGathersInBFloat16WhatComputesInIt) {
  launch(1, [](RankContext& rank) {
    const auto config = test::sharded_toy_config();
    const auto mesh = DeviceMesh::flat(rank.group());
    const auto batch = test::toy_batches(0, 1, config.vocab_size)[0];
    models::CausalLM told(config, 3), asked(config, 3);
    told.compute_in(kBf16);
    training::shard_model(told, mesh, {});
    training::shard_model(asked, mesh, {.mixed_precision = {.param_dtype = kBf16}});
    EXPECT_EQ(objective_of(told, batch).item(), objective_of(asked, batch).item());
    models::CausalLM other(config, 3);
    other.compute_in(kBf16);
    EXPECT_EQ(test::message_of<DtypeError>([&] {
                fsdp::fully_shard(other, mesh,
                                  {.mixed_precision = {.param_dtype = Dtype::kFloat32}});
              }),
              "fully_shard: param_dtype must be bfloat16 for a module that computes in it "
              "(compute_in), got float32");
  });
}

// As in FSDP2: each call has a policy of its own.
TEST(ComputeDtype, AModuleComputesAsTheCallThatShardsItSays) {
  launch(1, [](RankContext& rank) {
    auto config = test::sharded_toy_config();
    config.dtype = Dtype::kFloat32;
    const auto mesh = DeviceMesh::flat(rank.group());
    const fsdp::Policy narrow = {.mixed_precision = {.param_dtype = kBf16}};
    models::CausalLM model(config, 3);
    fsdp::fully_shard(model.layers()[0], mesh,
                      {.mixed_precision = {.param_dtype = Dtype::kFloat32}});
    fsdp::fully_shard(model.layers()[1], mesh, narrow);
    fsdp::fully_shard(model, mesh, narrow);
    for (const auto& [path, module] : model.named_modules()) {
      const bool wide = path.starts_with("model.layers.0");
      EXPECT_EQ(module->compute_dtype().has_value(), !wide) << path;
    }
  });
}

// The modules of one call form one unit, with one policy.
TEST(ComputeDtype, OneOfAListThatComputesInBFloat16IsEnough) {
  launch(1, [](RankContext& rank) {
    nn::Linear first({20, 20}), second({20, 20});
    second.compute_in(kBf16);
    auto& state = fsdp::fully_shard({&first, &second}, DeviceMesh::flat(rank.group()));
    state.unshard();
    for (const auto* linear : {&first, &second}) {
      EXPECT_EQ(linear->compute_dtype(), kBf16);
      EXPECT_EQ(linear->weight().dtype(), kBf16);
    }
  });
}

TEST(ComputeDtype, CannotBeTurnedOffWhereWeightsAreGatheredInBFloat16) {
  launch(1, [](RankContext& rank) {
    auto config = test::sharded_toy_config();
    config.dtype = Dtype::kFloat32;
    models::CausalLM model(config, 3);
    const fsdp::Policy narrow = {.mixed_precision = {.param_dtype = kBf16}};
    fsdp::fully_shard(model, DeviceMesh::flat(rank.group()), narrow);
    model.compute_in(std::nullopt);
    const auto batch = test::toy_batches(0, 1, config.vocab_size)[0];
    EXPECT_THAT(test::message_of<Error>([&] { model(batch.tokens); }),
                ::testing::StartsWith(
                    "compute_in: must not be turned off for a module whose weights fully_shard "
                    "gathers in bfloat16 (param_dtype), got one that computes in float32"));
  });
}

TEST(ComputeDtype, RefusesWhatContradicts) {
  launch(1, [](RankContext& rank) {
    const auto message = [&](const fsdp::MixedPrecisionPolicy& mixed, Dtype dtype) {
      auto config = test::sharded_toy_config();
      config.dtype = dtype;
      models::CausalLM model(config, 3);
      return test::message_of<DtypeError>([&] {
        fsdp::fully_shard(model, DeviceMesh::flat(rank.group()), {.mixed_precision = mixed});
      });
    };
    const auto f32 = Dtype::kFloat32, f64 = Dtype::kFloat64;
    EXPECT_EQ(message({.param_dtype = kBf16, .wire_dtype = f64}, f32),
              "fully_shard: wire_dtype must be bfloat16 or float32 where parameters are computed "
              "with in bfloat16, got float64");
    EXPECT_EQ(message({.param_dtype = f64, .wire_dtype = f32}, f64),
              "fully_shard: wire_dtype must be bfloat16 or float64 where parameters are computed "
              "with in float64, got float32");
    EXPECT_EQ(message({.wire_dtype = Dtype::kInt64}, f32),
              "fully_shard: wire_dtype must be a floating dtype, got int64");
    EXPECT_EQ(message({.param_dtype = kBf16}, f64),
              "fully_shard: param_dtype bfloat16 needs float32 parameters, got float64");
  });
  models::CausalLM model(test::sharded_toy_config(), 3);
  EXPECT_EQ(test::message_of<DtypeError>([&] { model.compute_in(Dtype::kFloat64); }),
            "compute_in: dtype must be bfloat16 or none, got float64");
  auto wide = test::sharded_toy_config();
  wide.dtype = Dtype::kFloat64;
  models::CausalLM of_doubles(wide, 3);
  EXPECT_EQ(test::message_of<DtypeError>([&] { of_doubles.compute_in(kBf16); }),
            "compute_in: bfloat16 needs float32 parameters, got float64 of "
            "'model.embed_tokens.weight'");
}

}  // namespace
}  // namespace moegrad::compute_dtype_test
