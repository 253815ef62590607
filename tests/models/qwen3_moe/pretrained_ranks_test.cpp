// SPDX-License-Identifier: Apache-2.0
// Hugging Face checkpoints into and out of sharded models.
#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "framework/io/safetensors.h"
#include "framework/tensor/arena.h"
#include "models/qwen3_moe/config_json.h"
#include "models/qwen3_moe/load_pretrained.h"
#include "models/qwen3_moe/save_pretrained.h"
#include "tests/framework/io/files.h"
#include "tests/fsdp/hand_sharded.h"
#include "tests/fsdp/models.h"
#include "tests/models/qwen3_moe/expert_layouts.h"
#include "tests/models/qwen3_moe/find_tensor.h"
#include "tests/models/qwen3_moe/golden_data.h"
#include "tests/models/qwen3_moe/random_checkpoint.h"

namespace moegrad::models::pretrained_ranks_test {
namespace {

namespace fs = std::filesystem;
using test::bitwise_equal;
using test::message_of;
using test::random_checkpoint;
using test::TemporaryFolder;

constexpr int kWorldSizes[] = {1, 2, 3, 4, 7, 8};

struct Variant {
  std::string name;  // of the test
  Qwen3MoeConfig config;
  fsdp::Policy policy = {};
};

void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

/// Four experts, and one layer without any.
Qwen3MoeConfig toy_config() {
  auto config = test::sharded_toy_config();
  config.num_hidden_layers = 3;
  config.mlp_only_layers = {1};
  return config;
}

Qwen3MoeConfig tied(Qwen3MoeConfig config) {
  config.tie_word_embeddings = true;
  return config;
}

std::vector<Variant> variants() {
  return {{"Pretransposed", toy_config()},
          {"HuggingFaceOriented", test::hugging_face_oriented(toy_config())},
          {"Tied", tied(toy_config())},
          {"LinearOnlyShard", toy_config(), {.linear_only_shard = true}},
          {"TiedLinearOnlyShardHuggingFaceOriented",
           test::hugging_face_oriented(tied(toy_config())),
           {.linear_only_shard = true}}};
}

void write_source(const fs::path& path, const Qwen3MoeConfig& config) {
  save_safetensors(path, random_checkpoint(config), {{"format", "pt"}});
}

/// The model on every rank, with weights that are not the checkpoint's; then `body`.
void on_ranks(int world_size, const Qwen3MoeConfig& config, const fsdp::Policy& policy,
              const std::function<void(Qwen3Moe&, fsdp::State&)>& body) {
  launch(world_size, [&](RankContext& context) {
    Qwen3Moe model(config, 3);
    auto& state = training::shard_model(model, DeviceMesh::flat(context.group()), policy);
    body(model, state);
  });
}

/// Each sharded parameter is its part of what the tensors say, by the tests' own mapping.
void expect_holds_parts_of(const NamedTensors& tensors, const Qwen3Moe& model) {
  const auto slots = model.parameter_slots();
  for (const auto& [name, parameter] : model.named_parameters()) {
    const auto slot = std::ranges::find(slots, name, &nn::ParameterSlot::name);
    const Tensor whole = to_dtype(test::from_hugging_face(tensors, *slot), parameter.dtype());
    const auto& spec = *parameter.shard_spec();
    ASSERT_EQ(whole.shape(), spec.global_shape) << name;
    EXPECT_TRUE(bitwise_equal(parameter.detach(), shard_view(whole, spec))) << name;
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

class PretrainedOnRanks : public ::testing::TestWithParam<std::tuple<Variant, int>> {
 protected:
  const Variant& variant() const { return std::get<0>(GetParam()); }
  int world_size() const { return std::get<1>(GetParam()); }
};

TEST_P(PretrainedOnRanks, LoadSaveLoadGivesTheSameBits) {
  const TemporaryFolder folder;
  const auto source = folder / "source.safetensors", saved = folder / "saved";
  write_source(source, variant().config);
  const auto tensors = load_safetensors(source);
  on_ranks(world_size(), variant().config, variant().policy, [&](Qwen3Moe& model, fsdp::State&) {
    load_pretrained(model, source);
    expect_holds_parts_of(tensors, model);
    save_pretrained(model, saved);
  });
  const auto files = files_in(saved);
  EXPECT_EQ(files.size(), 2U);
  EXPECT_TRUE(files.at("model.safetensors") == test::read_file(source));
  EXPECT_EQ(read_qwen3_moe_config(saved / "config.json"), variant().config);
  on_ranks(world_size(), variant().config, variant().policy, [&](Qwen3Moe& model, fsdp::State&) {
    load_pretrained(model, saved);
    expect_holds_parts_of(tensors, model);
  });
}

TEST_P(PretrainedOnRanks, SeveralFilesAreTheSameForEveryWorldSize) {
  const TemporaryFolder folder;
  const auto source = folder / "source.safetensors";
  write_source(source, variant().config);
  const SavePretrainedOptions options = {.max_shard_bytes = 15'000};
  Qwen3Moe whole(variant().config);
  load_pretrained(whole, source);
  save_pretrained(whole, folder / "one", options);
  on_ranks(world_size(), variant().config, variant().policy, [&](Qwen3Moe& model, fsdp::State&) {
    load_pretrained(model, folder / "one");
    expect_holds_parts_of(load_safetensors(source), model);
    save_pretrained(model, folder / "many", options);
  });
  const auto one = files_in(folder / "one");
  EXPECT_GT(one.size(), 5U);
  EXPECT_TRUE(one == files_in(folder / "many"));
  // And back into a single file.
  load_pretrained(whole, folder / "many");
  save_pretrained(whole, folder / "many");
  EXPECT_TRUE(files_in(folder / "many").at("model.safetensors") == test::read_file(source));
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
    write_source(folder / "source.safetensors", config);
    const auto tensors = load_safetensors(folder / "source.safetensors");
    for (const auto& [ranks, dense, experts, dim] : cases) {
      int cut = 0;  // parameters cut along `dim`
      launch(ranks, [&](RankContext& context) {
        Qwen3Moe model(config, 3);
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
      EXPECT_TRUE(files_in(folder / "saved").at("model.safetensors") ==
                  test::read_file(folder / "source.safetensors"));
      fs::remove_all(folder / "saved");
    }
  }
}

TEST(PretrainedOnRanks, LoadsAndSavesParametersThatAreCutTwice) {
  const TemporaryFolder folder;
  for (const auto& config : {toy_config(), test::hugging_face_oriented(toy_config())}) {
    write_source(folder / "source.safetensors", config);
    const auto tensors = load_safetensors(folder / "source.safetensors");
    launch(4, [&](RankContext& context) {
      const DeviceMesh mesh(context.group(), {{"outer", 2}, {"inner", 2}});
      Qwen3Moe model(config, 3);
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
    EXPECT_TRUE(files_in(folder / "saved").at("model.safetensors") ==
                test::read_file(folder / "source.safetensors"));
    fs::remove_all(folder / "saved");
  }
}

class PretrainedGolden : public ::testing::TestWithParam<std::tuple<const char*, int>> {};

TEST_P(PretrainedGolden, FileComesBackByteForByte) {
  const auto [name, world_size] = GetParam();
  const auto source = test::golden_folder() / name;
  const TemporaryFolder folder;
  const auto config = read_qwen3_moe_config(source / "config.json");
  on_ranks(world_size, config, {}, [&](Qwen3Moe& model, fsdp::State&) {
    load_pretrained(model, source);
    save_pretrained(model, folder / "saved");
  });
  EXPECT_TRUE(files_in(folder / "saved").at("model.safetensors") ==
              test::read_file(source / "model.safetensors"));
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
  write_source(folder / "source.safetensors", config);
  const auto tensors = load_safetensors(folder / "source.safetensors");
  const fsdp::Policy policy = {.reshard_after_forward = false,
                               .mixed_precision = {.param_dtype = Dtype::kBFloat16}};
  const auto batch = test::toy_batch(config.vocab_size);
  on_ranks(3, config, policy, [&](Qwen3Moe& model, fsdp::State&) {
    const auto is_gathered = [&] {
      return model.parameter_slots()[0].tensor->shard_spec() == nullptr;
    };
    load_pretrained(model, folder / "source.safetensors");
    const Tensor first = model(batch.tokens, batch.documents).logits;
    EXPECT_TRUE(is_gathered());
    save_pretrained(model, folder / "saved");
    EXPECT_FALSE(is_gathered());

    Qwen3Moe other(config, 8);
    training::shard_model(other, DeviceMesh::flat(RankContext::current().group()), policy);
    const Tensor before = other(batch.tokens, batch.documents).logits;
    load_pretrained(other, folder / "saved");
    expect_holds_parts_of(tensors, other);
    const Tensor after = other(batch.tokens, batch.documents).logits;
    EXPECT_FALSE(bitwise_equal(before.detach(), first.detach()));
    EXPECT_TRUE(bitwise_equal(after.detach(), first.detach()));
  });
  EXPECT_TRUE(files_in(folder / "saved").at("model.safetensors") ==
              test::read_file(folder / "source.safetensors"));
}

TEST(PretrainedOnRanks, OnlyTheFirstRankHoldsAWholeParameter) {
  const TemporaryFolder folder;
  std::int64_t largest = 0;
  for (const auto& [name, parameter] : Qwen3Moe(toy_config()).named_parameters()) {
    largest = std::max(largest, parameter.numel() * size_of(parameter.dtype()));
  }
  on_ranks(4, toy_config(), {}, [&](Qwen3Moe& model, fsdp::State&) {
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
    Qwen3Moe model(toy_config(), 3);
    load_pretrained(model, folder / "source.safetensors");
    save_pretrained(model, folder / "saved");
    // Whoever returns finds the files.
    EXPECT_TRUE(fs::exists(folder / "saved" / "config.json"));
  });
  EXPECT_TRUE(files_in(folder / "saved").at("model.safetensors") ==
              test::read_file(folder / "source.safetensors"));
}

TEST(PretrainedOnRanks, AFileThatCannotBeWrittenIsAnErrorOfTheWholeLaunch) {
  const TemporaryFolder folder;
  test::write_file(folder / "taken", "a file");
  EXPECT_EQ(message_of<Error>([&] {
              on_ranks(3, toy_config(), {}, [&](Qwen3Moe& model, fsdp::State&) {
                save_pretrained(model, folder / "taken" / "saved");
              });
            }),
            "save_pretrained: cannot create " + (folder / "taken" / "saved").string() +
                ": Not a directory");
}

}  // namespace
}  // namespace moegrad::models::pretrained_ranks_test
