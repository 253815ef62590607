// SPDX-License-Identifier: Apache-2.0
// Hugging Face checkpoints into and out of sharded models.
#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "framework/io/safetensors.h"
#include "framework/runtime/arena.h"
#include "models/causal_lm/config_json.h"
#include "models/causal_lm/load_pretrained.h"
#include "models/causal_lm/save_pretrained.h"
#include "tests/framework/io/files.h"
#include "tests/fsdp/hand_sharded.h"
#include "tests/fsdp/models.h"
#include "tests/models/causal_lm/expert_layouts.h"
#include "tests/models/causal_lm/find_tensor.h"
#include "tests/models/causal_lm/golden_data.h"
#include "tests/models/causal_lm/random_checkpoint.h"

namespace moegrad::models::pretrained_ranks_test {
namespace {

namespace fs = std::filesystem;
using namespace test;

constexpr int kWorldSizes[] = {1, 2, 3, 4, 7, 8};

struct Variant {
  std::string name;  // of the test
  CausalLMConfig config;
  fsdp::Policy policy = {};
};

void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

/// Four experts, and one layer without any.
CausalLMConfig toy_config() {
  auto config = test::sharded_toy_config();
  config.num_hidden_layers = 3;
  config.mlp_only_layers = {1};
  return config;
}

CausalLMConfig tied(CausalLMConfig config) {
  config.tie_word_embeddings = true;
  return config;
}

CausalLMConfig of_type(ModelType type) {
  auto config = test::toy_config_of(type);
  config.dtype = Dtype::kFloat32;
  return config;
}

std::vector<Variant> variants() {
  return {{"Qwen2Moe", of_type(ModelType::kQwen2Moe)},
          {"Mixtral", test::hugging_face_oriented(of_type(ModelType::kMixtral))},
          {"MixtralPretransposed", of_type(ModelType::kMixtral)},
          {"Glm4Moe", of_type(ModelType::kGlm4Moe)},
          {"Pretransposed", toy_config()},
          {"HuggingFaceOriented", test::hugging_face_oriented(toy_config())},
          {"Tied", tied(toy_config())},
          {"LinearOnlyShard", toy_config(), {.linear_only_shard = true}},
          {"TiedLinearOnlyShardHuggingFaceOriented",
           test::hugging_face_oriented(tied(toy_config())),
           {.linear_only_shard = true}}};
}

/// Writes a checkpoint and returns what is in it.
NamedTensors write_source(const fs::path& path, const CausalLMConfig& config) {
  save_safetensors(path, random_checkpoint(config), {{"format", "pt"}});
  return load_safetensors(path);
}

/// The model on every rank, with weights that are not the checkpoint's; then `body`.
void on_ranks(int world_size, const CausalLMConfig& config, const fsdp::Policy& policy,
              const std::function<void(CausalLM&, fsdp::State&)>& body) {
  launch(world_size, [&](RankContext& context) {
    CausalLM model(config, 3);
    auto& state = training::shard_model(model, DeviceMesh::flat(context.group()), policy);
    body(model, state);
  });
}

/// Each sharded parameter is its part of what the tensors say, by the tests' own mapping.
void expect_holds_parts_of(const NamedTensors& tensors, const CausalLM& model) {
  const auto slots = model.parameter_slots();
  for (const auto& [name, parameter] : model.named_parameters()) {
    const auto slot = std::ranges::find(slots, name, &nn::ParameterSlot::name);
    const Tensor whole = to_dtype(test::from_hugging_face(tensors, *slot), parameter.dtype());
    const auto& spec = *parameter.shard_spec();
    ASSERT_EQ(whole.shape(), spec.global_shape) << name;
    EXPECT_TRUE(bitwise_equal(parameter.detach(), shard_view(whole, spec))) << name;
  }
  for (const auto& [name, buffer] : model.named_buffers()) {
    EXPECT_TRUE(bitwise_equal(buffer, test::find(tensors, name))) << name;
  }
}

/// The contents of the files of a folder, by name.
std::map<std::string, std::string> files_in(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    files[entry.path().filename().string()] = test::read_file(entry.path());
  }
  return files;
}

/// The folder has a single file of weights, `file` byte for byte.
void expect_same_weights(const fs::path& folder, const fs::path& file) {
  EXPECT_TRUE(files_in(folder).at("model.safetensors") == test::read_file(file)) << folder;
}

class PretrainedOnRanks : public ::testing::TestWithParam<std::tuple<Variant, int>> {
 protected:
  const Variant& variant() const { return std::get<0>(GetParam()); }
  int world_size() const { return std::get<1>(GetParam()); }
};

TEST_P(PretrainedOnRanks, LoadSaveLoadGivesTheSameBits) {
  const TemporaryFolder folder;
  const auto source = folder / "source.safetensors", saved = folder / "saved";
  const auto tensors = write_source(source, variant().config);
  on_ranks(world_size(), variant().config, variant().policy, [&](CausalLM& model, fsdp::State&) {
    load_pretrained(model, source);
    expect_holds_parts_of(tensors, model);
    save_pretrained(model, saved);
  });
  const auto files = files_in(saved);
  EXPECT_EQ(files.size(), 2U);
  EXPECT_TRUE(files.at("model.safetensors") == test::read_file(source));
  EXPECT_EQ(read_model_config(saved / "config.json"), variant().config);
  on_ranks(world_size(), variant().config, variant().policy, [&](CausalLM& model, fsdp::State&) {
    load_pretrained(model, saved);
    expect_holds_parts_of(tensors, model);
  });
}

TEST_P(PretrainedOnRanks, SeveralFilesAreTheSameForEveryWorldSize) {
  const TemporaryFolder folder;
  const auto source = folder / "source.safetensors";
  const auto tensors = write_source(source, variant().config);
  const SavePretrainedOptions options = {.max_shard_bytes = 15'000};
  CausalLM whole(variant().config);
  load_pretrained(whole, source);
  save_pretrained(whole, folder / "one", options);
  on_ranks(world_size(), variant().config, variant().policy, [&](CausalLM& model, fsdp::State&) {
    load_pretrained(model, folder / "one");
    expect_holds_parts_of(tensors, model);
    save_pretrained(model, folder / "many", options);
  });
  const auto one = files_in(folder / "one");
  EXPECT_GT(one.size(), 5U);
  EXPECT_TRUE(one == files_in(folder / "many"));
  // And back into a single file.
  load_pretrained(whole, folder / "many");
  save_pretrained(whole, folder / "many");
  expect_same_weights(folder / "many", source);
}

INSTANTIATE_TEST_SUITE_P(Sweep, PretrainedOnRanks,
                         ::testing::Combine(::testing::ValuesIn(variants()),
                                            ::testing::ValuesIn(kWorldSizes)),
                         [](const auto& test) {
                           return std::get<0>(test.param).name + "On" +
                                  std::to_string(std::get<1>(test.param));
                         });

struct MeshCase {
  int ranks;
  std::vector<MeshAxis> dense, experts;
  std::int64_t dim;
};

TEST(PretrainedOnRanks, LoadsAndSavesShardsAlongAnyDimensionOfAnyMesh) {
  const TemporaryFolder folder;
  const auto shards = [](int n) { return std::vector<MeshAxis>{{"shard", n}}; };
  const auto replicated = [](int r, int n) {
    return std::vector<MeshAxis>{{"replicate", r}, {"shard", n}};
  };
  const std::vector<MeshCase> cases = {{2, shards(2), shards(2), 1},
                                       {4, shards(4), shards(4), 1},
                                       {4, replicated(2, 2), replicated(2, 2), 0},
                                       {4, replicated(2, 2), replicated(2, 2), 1},
                                       {4, shards(4), replicated(2, 2), 0},
                                       {4, replicated(2, 2), shards(4), 1},
                                       {4, replicated(4, 1), shards(4), 0}};
  for (const auto& config : {toy_config(), test::hugging_face_oriented(tied(toy_config()))}) {
    const auto tensors = write_source(folder / "source.safetensors", config);
    for (const auto& [ranks, dense, experts, dim] : cases) {
      int cut = 0;  // parameters cut along `dim`
      launch(ranks, [&, &dense = dense, &experts = experts, dim = dim](RankContext& context) {
        CausalLM model(config, 3);
        test::shard_by_hand(model, DeviceMesh(context.group(), dense),
                            DeviceMesh(context.group(), experts), dim);
        load_pretrained(model, folder / "source.safetensors");
        expect_holds_parts_of(tensors, model);
        save_pretrained(model, folder / "saved");
        if (context.rank() != 0) return;
        for (const auto& [name, parameter] : model.named_parameters()) {
          cut += parameter.shard_spec()->placements.front().dim == dim ? 1 : 0;
        }
      });
      EXPECT_GT(cut, 10);
      expect_same_weights(folder / "saved", folder / "source.safetensors");
      fs::remove_all(folder / "saved");
    }
  }
}

TEST(PretrainedOnRanks, LoadsAndSavesParametersThatAreCutTwice) {
  const TemporaryFolder folder;
  for (const auto& config : {toy_config(), test::hugging_face_oriented(toy_config())}) {
    const auto tensors = write_source(folder / "source.safetensors", config);
    launch(4, [&](RankContext& context) {
      const DeviceMesh mesh(context.group(), {{"outer", 2}, {"inner", 2}});
      CausalLM model(config, 3);
      for (const auto& slot : model.parameter_slots()) {
        const bool matrix = slot.tensor->ndim() == 2;
        auto spec = whole_spec(slot.tensor->shape());
        spec = matrix ? divided(std::move(spec), mesh.group("outer"), 1)
                      : replicated(std::move(spec), mesh.group("outer"));
        *slot.tensor =
            test::shard_of(*slot.tensor, divided(std::move(spec), mesh.group("inner"), 0));
      }
      load_pretrained(model, folder / "source.safetensors");
      expect_holds_parts_of(tensors, model);
      save_pretrained(model, folder / "saved");
    });
    expect_same_weights(folder / "saved", folder / "source.safetensors");
    fs::remove_all(folder / "saved");
  }
}

// Under the names of transformers 5's modules, too.
TEST(PretrainedOnRanks, WhatIsSavedFusedComesBack) {
  for (const auto type : test::kModelTypes) {
    const TemporaryFolder folder;
    const auto config = of_type(type);
    const auto tensors = write_source(folder / "source.safetensors", config);
    on_ranks(3, config, {}, [&](CausalLM& model, fsdp::State&) {
      load_pretrained(model, folder / "source.safetensors");
      save_pretrained(model, folder / "fused", {.experts = HfExperts::kFused});
    });
    const auto fused = load_safetensors(folder / "fused" / "model.safetensors");
    const auto layer = config.num_hidden_layers - 1;
    const auto mixture = "model.layers." + std::to_string(layer) + ".mlp.";
    const auto e = config.num_experts, i = config.moe_intermediate_size, h = config.hidden_size;
    EXPECT_EQ(test::find(fused, mixture + "experts.gate_up_proj").shape(), (Shape{e, 2 * i, h}));
    EXPECT_EQ(test::find(fused, mixture + "experts.down_proj").shape(), (Shape{e, h, i}));
    EXPECT_EQ(test::find(fused, mixture + "gate.weight").shape(), (Shape{e, h}));
    on_ranks(2, config, {}, [&](CausalLM& model, fsdp::State&) {
      load_pretrained(model, folder / "fused");
      expect_holds_parts_of(tensors, model);
      save_pretrained(model, folder / "again");
    });
    expect_same_weights(folder / "again", folder / "source.safetensors");
  }
}

// A file of transformers 5 lists its tensors in another order, so these are compared one by one;
// what this library writes is the same file again at every number of ranks.
TEST(PretrainedOnRanks, GoldenModelsOfTransformers5KeepEveryTensor) {
  for (const auto* name : {"qwen3_moe_v5", "qwen2_moe", "mixtral", "glm4_moe"}) {
    const auto source = test::golden_folder() / "v5" / name;
    const auto config = read_model_config(source / "config.json");
    const auto theirs = load_safetensors(source / "model.safetensors");
    std::optional<std::string> bytes;
    for (const int ranks : {1, 2, 3, 4, 8}) {
      const TemporaryFolder folder;
      on_ranks(ranks, config, {}, [&](CausalLM& model, fsdp::State&) {
        load_pretrained(model, source);
        save_pretrained(model, folder / "one");
        load_pretrained(model, folder / "one");
        save_pretrained(model, folder / "two");
      });
      const auto ours = load_safetensors(folder / "one" / "model.safetensors");
      ASSERT_EQ(ours.size(), theirs.size()) << name;
      for (const auto& tensor : theirs) {
        EXPECT_TRUE(bitwise_equal(test::find(ours, tensor.name), tensor.tensor)) << tensor.name;
      }
      const auto written = files_in(folder / "one");
      EXPECT_TRUE(written == files_in(folder / "two")) << name << " on " << ranks;
      if (!bytes) bytes = written.at("model.safetensors");
      EXPECT_TRUE(*bytes == written.at("model.safetensors")) << name << " on " << ranks;
    }
  }
}

class PretrainedGolden : public ::testing::TestWithParam<std::tuple<const char*, int>> {};

TEST_P(PretrainedGolden, FileComesBackByteForByte) {
  const auto [name, world_size] = GetParam();
  const auto source = test::golden_folder() / name;
  const TemporaryFolder folder;
  const auto config = read_model_config(source / "config.json");
  on_ranks(world_size, config, {}, [&](CausalLM& model, fsdp::State&) {
    load_pretrained(model, source);
    save_pretrained(model, folder / "saved");
  });
  expect_same_weights(folder / "saved", source / "model.safetensors");
}

INSTANTIATE_TEST_SUITE_P(HuggingFace, PretrainedGolden,
                         ::testing::Combine(::testing::Values("a_minimal", "b_tied_dense_nonorm",
                                                              "c_mlponly_odd_ignore"),
                                            ::testing::ValuesIn(kWorldSizes)));

// A forward whose backward never comes leaves parameters gathered: rounded to what travelled, and
// as FRACTAL_NZ.
TEST(PretrainedOnRanks, SavesAndLoadsTheShardsWhileParametersAreGathered) {
  const TemporaryFolder folder;
  const auto config = toy_config();
  const auto tensors = write_source(folder / "source.safetensors", config);
  const fsdp::Policy policy = {.reshard_after_forward = false,
                               .mixed_precision = {.wire_dtype = Dtype::kBFloat16}};
  const auto batch = test::toy_batch(config.vocab_size);
  on_ranks(3, config, policy, [&](CausalLM& model, fsdp::State&) {
    const auto is_gathered = [&] {
      return model.parameter_slots()[0].tensor->shard_spec() == nullptr;
    };
    load_pretrained(model, folder / "source.safetensors");
    const Tensor first = model(batch.tokens, batch.documents).logits;
    EXPECT_TRUE(is_gathered());
    save_pretrained(model, folder / "saved");
    EXPECT_FALSE(is_gathered());

    CausalLM other(config, 8);
    training::shard_model(other, DeviceMesh::flat(RankContext::current().group()), policy);
    const Tensor before = other(batch.tokens, batch.documents).logits;
    load_pretrained(other, folder / "saved");
    expect_holds_parts_of(tensors, other);
    const Tensor after = other(batch.tokens, batch.documents).logits;
    EXPECT_FALSE(bitwise_equal(before.detach(), first.detach()));
    EXPECT_TRUE(bitwise_equal(after.detach(), first.detach()));
  });
  expect_same_weights(folder / "saved", folder / "source.safetensors");
}

TEST(PretrainedOnRanks, OnlyTheFirstRankHoldsAWholeParameter) {
  const TemporaryFolder folder;
  std::int64_t largest = 0;
  for (const auto& [name, parameter] : CausalLM(toy_config()).named_parameters()) {
    largest = std::max(largest, parameter.numel() * size_of(parameter.dtype()));
  }
  on_ranks(4, toy_config(), {}, [&](CausalLM& model, fsdp::State&) {
    const auto& context = RankContext::current();
    const auto live = context.arena()->live().total();
    context.arena()->reset_peak();
    save_pretrained(model, folder / "saved");
    EXPECT_EQ(context.arena()->peak().total() - live, context.rank() == 0 ? largest : 0);
    EXPECT_EQ(context.arena()->live().total(), live);
  });
}

TEST(PretrainedOnRanks, SavesAModelThatEveryRankHoldsWhole) {
  const TemporaryFolder folder;
  write_source(folder / "source.safetensors", toy_config());
  launch(3, [&](RankContext&) {
    CausalLM model(toy_config(), 3);
    load_pretrained(model, folder / "source.safetensors");
    save_pretrained(model, folder / "saved");
    // A rank that returns finds the files.
    EXPECT_TRUE(fs::exists(folder / "saved" / "config.json"));
  });
  expect_same_weights(folder / "saved", folder / "source.safetensors");
}

TEST(PretrainedOnRanks, AFileThatCannotBeWrittenIsAnErrorOfTheWholeLaunch) {
  const TemporaryFolder folder;
  test::write_file(folder / "taken", "a file");
  EXPECT_EQ(message_of<Error>([&] {
              on_ranks(3, toy_config(), {}, [&](CausalLM& model, fsdp::State&) {
                save_pretrained(model, folder / "taken" / "saved");
              });
            }),
            "save_pretrained: cannot create " + (folder / "taken" / "saved").string() +
                ": Not a directory");
}

}  // namespace
}  // namespace moegrad::models::pretrained_ranks_test
