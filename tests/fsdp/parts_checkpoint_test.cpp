// SPDX-License-Identifier: Apache-2.0
// The parts of a model, each on ranks of its own, write one checkpoint, which the whole model
// reads.
#include <gtest/gtest.h>

#include "framework/distributed/shard_runs.h"
#include "framework/io/checkpoint_reader.h"
#include "framework/io/checkpoint_writer.h"
#include "fsdp/fully_shard.h"
#include "tests/framework/io/files.h"
#include "tests/fsdp/models.h"

namespace moegrad::parts_checkpoint_test {
namespace {

using models::CausalLM;
using models::CausalLMPart;
using namespace test;

models::CausalLMConfig four_layers() {
  auto config = test::sharded_toy_config();
  config.num_hidden_layers = 4;
  return config;
}

/// A model, or a part of one, after a step of AdamW, if asked for, with gradients that depend on
/// nothing but names and elements.
struct Trained {
  Trained(const CausalLMPart& part, const DeviceMesh& mesh, bool trained)
      : model(four_layers(), trained ? 3 : 4, part) {
    training::shard_model(model, mesh, {});
    optimizer = std::make_unique<optim::AdamW>(model.named_parameters(), optim::AdamW::Config{});
    if (!trained) return;
    for (const auto& [name, parameter] : model.named_parameters()) {
      Tensor whole = Tensor::empty(parameter.shard_spec()->global_shape);
      const Random random(5, name);
      const auto values = whole.mutable_data<float>();
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<float>(random.normal(i));
      }
      parameter.set_grad(clone(shard_view(whole, *parameter.shard_spec())));
    }
    optimizer->step();
  }

  NamedTensors tensors() const {
    NamedTensors all = model.named_parameters();
    for (const auto& [name, tensor] : optimizer->state_dict()) {
      all.push_back({"optimizer." + name, tensor});
    }
    return all;
  }

  CausalLM model;
  std::unique_ptr<optim::AdamW> optimizer;
};

constexpr int kStages = 2;

CausalLMPart part_of_stage(int stage) {
  if (stage == 0) return {.end = 1, .head = false};
  return {.begin = 1, .embedding = false};
}

void save_in_stages(const std::filesystem::path& root, int ranks_per_stage) {
  launch(kStages * ranks_per_stage, [&](RankContext& context) {
    const auto meshes = make_meshes(context.group(), {.dp_shard = ranks_per_stage, .pp = kStages});
    const auto part = part_of_stage(meshes.world["pp"].group()->rank());
    const Trained stage(part, meshes.fsdp(), true);
    write_checkpoint(root, 7, {.tensors = stage.tensors()}, context.group());
  });
}

TEST(PartsCheckpoint, OfStagesIsReadByTheWholeModelAtAnyWorldSize) {
  for (const int ranks_per_stage : {1, 2}) {
    const TemporaryFolder root;
    save_in_stages(root / "", ranks_per_stage);
    for (const int loaded : {1, 2, 3}) {
      launch(loaded, [&](RankContext& context) {
        const auto mesh = DeviceMesh::flat(context.group());
        const Trained expected({}, mesh, true), found({}, mesh, false);
        CheckpointReader reader(root / "step-00000007");
        reader.read_all(found.tensors());
        const auto all = expected.tensors(), got = found.tensors();
        ASSERT_EQ(got.size(), all.size());
        for (std::size_t i = 0; i < all.size(); ++i) {
          EXPECT_TRUE(bitwise_equal(got[i].tensor, all[i].tensor))
              << ranks_per_stage << ' ' << loaded << ' ' << got[i].name;
        }
      });
    }
  }
}

TEST(PartsCheckpoint, APartReadsItsTensorsOfWhatOtherPartsWrote) {
  const TemporaryFolder root;
  save_in_stages(root / "", 2);
  launch(2, [&](RankContext& context) {
    const auto mesh = DeviceMesh::flat(context.group());
    const CausalLMPart middle = {.begin = 1, .end = 2, .embedding = false, .head = false};
    const Trained expected(middle, mesh, true), found(middle, mesh, false);
    CheckpointReader reader(root / "step-00000007");
    const auto all = expected.tensors(), got = found.tensors();
    for (std::size_t i = 0; i < all.size(); ++i) {
      reader.read(got[i].name, got[i].tensor);
      EXPECT_TRUE(bitwise_equal(got[i].tensor, all[i].tensor)) << got[i].name;
    }
  });
}

}  // namespace
}  // namespace moegrad::parts_checkpoint_test
