// SPDX-License-Identifier: Apache-2.0

// A whole model kept in one dtype and computed with in another.

#include <cmath>

#include "framework/distributed/shard_runs.h"
#include "fsdp/fully_shard.h"
#include "models/causal_lm/loss.h"
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
}

}  // namespace
}  // namespace moegrad::compute_dtype_test
