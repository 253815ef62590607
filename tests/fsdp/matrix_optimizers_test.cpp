// SPDX-License-Identifier: Apache-2.0

// Optimizers of matrices on a model under fully_shard. Class E0: equal to the last bit.

#include <cstring>
#include <map>
#include <memory>

#include "framework/io/checkpoint_reader.h"
#include "framework/io/checkpoint_writer.h"
#include "models/causal_lm/hf_layout.h"
#include "models/matrix_parameters.h"
#include "nn/experts.h"
#include "optim/adafactor.h"
#include "tests/framework/io/files.h"
#include "tests/fsdp/models.h"
#include "train/make_muon.h"

namespace moegrad::matrix_optimizers_test {
namespace {

using test::bitwise_equal;

using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(const nn::Module&)>;

std::unique_ptr<optim::Optimizer> muon_of(const nn::Module& model) {
  return training::make_muon(model, {.lr = 0.02, .adamw = {.lr = 0.01}});
}

std::unique_ptr<optim::Optimizer> adafactor_of(const nn::Module& model) {
  return std::make_unique<optim::Adafactor>(
      model.named_parameters(),
      optim::Adafactor::Config{.matrices = models::stacked_matrices(model),
                               .skip_missing_grad = nn::expert_blocks(model)});
}

// Dimensions that 4 ranks do not divide, and shards that begin inside an expert.
models::CausalLMConfig config_with(nn::ExpertWeights experts) {
  auto config = test::sharded_toy_config();
  config.num_experts = 6;
  config.moe_intermediate_size = 11;
  config.expert_weights = experts;
  return config;
}

constexpr std::int64_t kBefore = 2, kSteps = 4, kMicroBatches = 4;

struct Training {
  Training(RankContext& context, const ParallelDims& ranks, nn::ExpertWeights experts,
           const MakeOptimizer& make, std::uint64_t seed)
      : dims(ranks),
        model(config_with(experts), seed),
        state(training::shard_model(model, make_meshes(context.group(), dims), {})),
        optimizer(make(model)) {}

  void take_steps(std::int64_t from, std::int64_t to) {
    for (auto step = from; step < to; ++step) {
      fsdp::StepPlan plan(state, kMicroBatches, fsdp::accumulation_on(dims));
      const auto batches = test::toy_batches(step, kMicroBatches, model.config().vocab_size);
      training::train_step(model, plan, plan.own(batches), {}, *optimizer);
    }
  }
  NamedTensors tensors() {
    model.restore_parameters();
    auto all = model.named_parameters();
    for (const auto& tensor : optimizer->state_dict()) all.push_back(tensor);
    return all;
  }
  /// By Hugging Face's names, on the first rank.
  std::map<std::string, Tensor> weights() {
    std::map<std::string, nn::ParameterLayout> layouts;
    for (const auto& slot : model.distinct_parameters()) layouts[slot.name] = slot.layout;
    std::map<std::string, Tensor> weights;
    for (const auto& [name, whole] : fsdp::full_state_dict(model)) {
      for (const auto& [own, tensor] : models::to_hugging_face(name, layouts.at(name), whole)) {
        weights[own] = tensor;
      }
    }
    return weights;
  }

  ParallelDims dims;
  models::CausalLM model;
  fsdp::State& state;
  std::unique_ptr<optim::Optimizer> optimizer;
};

std::map<std::string, Tensor> train(const ParallelDims& dims, nn::ExpertWeights experts,
                                    const MakeOptimizer& make) {
  std::map<std::string, Tensor> weights;
  launch(dims.ranks(), [&](RankContext& context) {
    Training training(context, dims, experts, make, 3);
    training.take_steps(0, kSteps);
    auto own = training.weights();
    if (context.rank() == 0) weights = std::move(own);
  });
  return weights;
}

void expect_same(const std::map<std::string, Tensor>& found,
                 const std::map<std::string, Tensor>& expected, const std::string& where) {
  ASSERT_EQ(found.size(), expected.size());
  ASSERT_GT(found.size(), 20U);
  for (const auto& [name, tensor] : found) {
    EXPECT_TRUE(bitwise_equal(tensor, expected.at(name))) << name << where;
  }
}

TEST(MatrixOptimizersOfAModel, HaveTheSameBitsOnAnyNumberOfRanksAndInEitherOrientation) {
  for (const auto& make : {MakeOptimizer(muon_of), MakeOptimizer(adafactor_of)}) {
    const auto expected = train({}, nn::ExpertWeights::kPretransposed, make);
    for (const auto& dims :
         {ParallelDims{}, ParallelDims{.dp_shard = 2}, ParallelDims{.dp_shard = 4},
          ParallelDims{.dp_shard = 2, .ep = 2}, ParallelDims{.dp_shard = 4, .ep = 2}}) {
      for (const auto experts :
           {nn::ExpertWeights::kPretransposed, nn::ExpertWeights::kHuggingFace}) {
        expect_same(train(dims, experts, make), expected, " on " + to_string(dims));
      }
    }
  }
}

TEST(MatrixOptimizersOfAModel, GoOnFromACheckpointOfOtherRanks) {
  constexpr auto kExperts = nn::ExpertWeights::kPretransposed;
  for (const auto& make : {MakeOptimizer(muon_of), MakeOptimizer(adafactor_of)}) {
    const auto expected = train({}, kExperts, make);
    const test::TemporaryFolder root;
    launch(4, [&](RankContext& context) {
      Training training(context, {.dp_shard = 4}, kExperts, make, 3);
      training.take_steps(0, kBefore);
      write_checkpoint(root / "", kBefore, {.tensors = training.tensors()}, context.group());
    });
    for (const auto& dims :
         {ParallelDims{}, ParallelDims{.dp_shard = 2}, ParallelDims{.dp_shard = 2, .ep = 2}}) {
      launch(dims.ranks(), [&](RankContext& context) {
        Training training(context, dims, kExperts, make, 99);
        auto reader = open_newest_checkpoint(root / "", context.group(),
                                             [](const auto& reason) { ADD_FAILURE() << reason; });
        ASSERT_TRUE(reader.has_value());
        reader->read_all(training.tensors());
        training.take_steps(kBefore, kSteps);
        const auto weights = training.weights();
        if (context.rank() == 0) expect_same(weights, expected, " on " + to_string(dims));
      });
    }
  }
}

TEST(MatrixOptimizersOfAModel, HaveGroupsByName) {
  launch(2, [](RankContext& context) {
    const Training training(context, {.dp_shard = 2}, nn::ExpertWeights::kPretransposed, muon_of,
                            3);
    std::vector<std::string> names;
    for (const auto& group : training.optimizer->groups()) names.push_back(group.name);
    EXPECT_EQ(names,
              (std::vector<std::string>{"matrices", "embedding", "head", "router", "vectors"}));
    EXPECT_EQ(training.optimizer->groups()[0].lr, 0.02);
    EXPECT_EQ(training.optimizer->groups()[1].lr, 0.01);
    EXPECT_EQ(training.optimizer->groups()[4].weight_decay, 0.0);
  });
}

}  // namespace
}  // namespace moegrad::matrix_optimizers_test
