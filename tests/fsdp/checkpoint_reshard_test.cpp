// SPDX-License-Identifier: Apache-2.0

// A sharded training saved by some ranks and gone on with by others.

#include <map>
#include <string>

#include "framework/distributed/gather_shards.h"
#include "framework/io/checkpoint_reader.h"
#include "framework/io/checkpoint_writer.h"
#include "optim/adamw.h"
#include "tests/framework/io/files.h"
#include "tests/fsdp/models.h"

namespace moegrad::checkpoint_reshard_test {
namespace {

using namespace test;

constexpr std::int64_t kBefore = 3, kAfter = 20, kMicroBatches = 8;

// Dimensions that neither 3 nor 8 ranks divide, and shards that begin inside an expert.
models::CausalLMConfig config_with(nn::ExpertWeights experts) {
  auto config = test::sharded_toy_config();
  config.vocab_size = 37;
  config.num_experts = 5;
  config.moe_intermediate_size = 11;
  config.expert_weights = experts;
  return config;
}

struct Training {
  Training(RankContext& context, const models::CausalLMConfig& config, const DeviceMesh& mesh,
           std::uint64_t seed)
      : model(config, seed),
        state(training::shard_model(model, mesh, {})),
        optimizer(training::decay_matrices(model.named_parameters(), 1e-2, 0.1), {}),
        group(context.group()) {}

  double step(std::int64_t number) {
    const auto batches = test::toy_batches(number, kMicroBatches, model.config().vocab_size);
    fsdp::StepPlan plan(state, kMicroBatches);
    return training::train_step(model, plan, plan.own(batches), {}, optimizer).loss;
  }
  NamedTensors tensors() {
    model.restore_parameters();
    auto all = model.named_parameters();
    for (const auto& tensor : optimizer.state_dict()) all.push_back(tensor);
    return all;
  }
  // On the first rank.
  std::map<std::string, Tensor> whole_tensors() {
    std::map<std::string, Tensor> whole;
    for (const auto& [name, tensor] : tensors()) {
      const auto& spec = tensor.shard_spec();
      whole[name] = spec ? gather_shards(tensor, *spec) : tensor;
      if (whole[name].defined()) whole[name] = clone(whole[name]);
    }
    return whole;
  }

  models::CausalLM model;
  fsdp::State& state;
  optim::AdamW optimizer;
  std::shared_ptr<ProcessGroup> group;
};

DeviceMesh mesh_of(const std::shared_ptr<ProcessGroup>& group, int replicas) {
  if (replicas == 1) return DeviceMesh::flat(group);
  return {group, {{"replicate", replicas}, {"shard", group->size() / replicas}}};
}

void expect_same(const std::map<std::string, Tensor>& found,
                 const std::map<std::string, Tensor>& expected, const std::string& where) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, tensor] : found) {
    EXPECT_TRUE(bitwise_equal(tensor, expected.at(name))) << name << where;
  }
}

void expect_resharding(nn::ExpertWeights experts, int saving_replicas) {
  const auto config = config_with(experts);
  const TemporaryFolder root;
  std::map<std::string, Tensor> saved;
  std::vector<double> losses;
  launch(4, [&](RankContext& context) {
    Training training(context, config, mesh_of(context.group(), saving_replicas), 3);
    for (std::int64_t step = 0; step < kBefore; ++step) training.step(step);
    write_checkpoint(root / "", kBefore, {.tensors = training.tensors()}, context.group());
    auto whole = training.whole_tensors();
    if (context.rank() == 0) saved = std::move(whole);
    for (std::int64_t step = kBefore; step < kBefore + kAfter; ++step) {
      const double loss = training.step(step);
      if (context.rank() == 0) losses.push_back(loss);
    }
  });
  ASSERT_GT(saved.size(), 40U);
  for (const int world_size : {1, 2, 3, 4, 8}) {
    launch(world_size, [&](RankContext& context) {
      Training training(context, config, mesh_of(context.group(), world_size == 8 ? 2 : 1), 99);
      auto reader = open_newest_checkpoint(root / "", context.group(),
                                           [](const auto& reason) { ADD_FAILURE() << reason; });
      ASSERT_TRUE(reader.has_value());
      reader->read_all(training.tensors());
      const auto whole = training.whole_tensors();
      if (context.rank() == 0) {
        expect_same(whole, saved, " at " + std::to_string(world_size) + " ranks");
      }
      for (std::int64_t step = 0; step < kAfter; ++step) {
        const double loss = training.step(kBefore + step);
        const double expected = losses[static_cast<std::size_t>(step)];
        if (world_size == 3) {
          EXPECT_NEAR(loss, expected, 2e-5 * expected) << step;
        } else {
          EXPECT_EQ(loss, expected) << step << " at " << world_size;
        }
      }
    });
  }
}

TEST(CheckpointReshard, ContinuesATrainingOnAnyNumberOfRanks) {
  expect_resharding(nn::ExpertWeights::kPretransposed, /*saving_replicas=*/1);
}

TEST(CheckpointReshard, ContinuesATrainingOfReplicasWithHuggingFaceWeights) {
  expect_resharding(nn::ExpertWeights::kHuggingFace, /*saving_replicas=*/2);
}

}  // namespace
}  // namespace moegrad::checkpoint_reshard_test
