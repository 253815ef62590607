// SPDX-License-Identifier: Apache-2.0
#include "models/causal_lm/save_pretrained.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "framework/io/safetensors.h"
#include "models/causal_lm/config_json.h"
#include "models/causal_lm/load_pretrained.h"
#include "models/hf_checkpoint.h"
#include "tests/framework/io/files.h"
#include "tests/models/causal_lm/find_tensor.h"
#include "tests/models/causal_lm/random_checkpoint.h"
#include "tests/models/causal_lm/toy_models.h"
#include "tests/testing.h"

namespace moegrad::models::save_pretrained_test {
namespace {

using test::message_of;
using test::random_checkpoint;
using test::TemporaryFolder;
using test::write_file;

CausalLMConfig toy_config(bool tied = false) {
  auto config = test::toy_config();
  config.tie_word_embeddings = tied;
  return config;
}

std::set<std::string> names_in(const std::filesystem::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

TEST(SavePretrained, WritesHuggingFacesTensorsAlone) {
  for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
    for (const bool tied : {false, true}) {
      const TemporaryFolder folder;
      auto config = toy_config(tied);
      config.dtype = dtype;
      const auto tensors = random_checkpoint(config, dtype);
      save_safetensors(folder / "source.safetensors", tensors);
      CausalLM model(config);
      load_pretrained(model, folder / "source.safetensors");
      save_pretrained(model, folder / "saved");
      EXPECT_EQ(names_in(folder / "saved"),
                (std::set<std::string>{"config.json", "model.safetensors"}));
      const auto saved = load_safetensors(folder / "saved" / "model.safetensors");
      EXPECT_EQ(saved.size(), tensors.size());
      for (const auto& [name, tensor] : tensors) {
        EXPECT_TRUE(test::bitwise_equal(test::find(saved, name), tensor)) << name;
      }
      EXPECT_EQ(test::read_file(folder / "saved" / "config.json"), to_json(config));
      EXPECT_EQ(SafetensorsFile(folder / "saved" / "model.safetensors").metadata(),
                (std::map<std::string, std::string>{{"format", "pt"}}));
    }
  }
}

// What Hugging Face's Qwen3 has and no more: the same names as a mixture's dense layers, and its
// own config.json.
TEST(SavePretrained, WritesADenseDecoderAsQwen3) {
  const TemporaryFolder folder;
  auto config = toy_config(true);
  config.num_experts = 0;
  const auto tensors = random_checkpoint(config, config.dtype);
  save_safetensors(folder / "source.safetensors", tensors);
  CausalLM model(config);
  load_pretrained(model, folder / "source.safetensors");
  save_pretrained(model, folder / "saved");
  const auto json = nlohmann::json::parse(test::read_file(folder / "saved" / "config.json"));
  EXPECT_EQ(json["model_type"], "qwen3");
  EXPECT_EQ(json["architectures"], (nlohmann::json{"Qwen3ForCausalLM"}));
  EXPECT_FALSE(json.contains("num_experts"));
  EXPECT_EQ(load_safetensors(folder / "saved" / "model.safetensors").size(), tensors.size());

  // A mixture whose layers are all dense computes the same.
  auto dense_layers = toy_config(true);
  dense_layers.mlp_only_layers = {0, 1};
  CausalLM same(dense_layers);
  load_pretrained(same, folder / "source.safetensors");
  CausalLM back(read_model_config(folder / "saved" / "config.json"));
  load_pretrained(back, folder / "saved");
  const Tensor tokens = Tensor::from(std::vector<std::int64_t>{3, 1, 36, 0, 7}, {5});
  EXPECT_TRUE(test::bitwise_equal(back(tokens).logits, model(tokens).logits));
  EXPECT_TRUE(test::bitwise_equal(back(tokens).logits, same(tokens).logits));
}

TEST(SavePretrained, CutsFilesBeforeTheTensorThatWouldBeTooMuch) {
  const TemporaryFolder folder;
  CausalLM model(toy_config());
  constexpr std::int64_t kLimit = 3000;  // below the embedding's 37 * 20 * 8 bytes
  save_pretrained(model, folder / "saved", {.max_shard_bytes = kLimit});
  const HfCheckpoint checkpoint(folder / "saved");
  std::map<std::string, std::vector<std::uint64_t>> files;  // bytes of the tensors of each
  std::uint64_t total = 0;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    files[tensor.file->path().filename().string()].push_back(tensor.entry->bytes());
    total += tensor.entry->bytes();
  }
  const auto count = files.size();
  EXPECT_GT(count, 10U);
  std::uint64_t previous = kLimit;
  std::size_t i = 0;
  for (const auto& [name, sizes] : files) {
    std::string number = std::to_string(++i), last = std::to_string(count);
    number.insert(0, 5 - number.size(), '0');
    last.insert(0, 5 - last.size(), '0');
    EXPECT_EQ(name, "model-" + number + "-of-" + last + ".safetensors");
    const auto bytes = std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
    EXPECT_TRUE(bytes <= kLimit || sizes.size() == 1) << name << " has " << bytes;
    // Each file has a tensor that did not fit in the file before.
    EXPECT_GT(previous + std::ranges::max(sizes), static_cast<std::uint64_t>(kLimit)) << name;
    previous = bytes;
  }
  const auto index =
      nlohmann::json::parse(test::read_file(folder / "saved" / std::string(kIndexFile)));
  EXPECT_EQ(index["metadata"], (nlohmann::json{{"total_size", total}}));
  EXPECT_EQ(index["weight_map"].size(), checkpoint.tensors().size());
}

TEST(SavePretrained, WritesTheIndexAsTransformersDoes) {
  const TemporaryFolder folder;
  auto config = toy_config(true);
  config.num_hidden_layers = 1;
  config.mlp_only_layers = {0};
  CausalLM model(config);
  save_pretrained(model, folder / "saved", {.max_shard_bytes = 20000});
  EXPECT_EQ(test::read_file(folder / "saved" / std::string(kIndexFile)), R"({
  "metadata": {
    "total_size": 30976
  },
  "weight_map": {
    "model.embed_tokens.weight": "model-00001-of-00002.safetensors",
    "model.layers.0.input_layernorm.weight": "model-00002-of-00002.safetensors",
    "model.layers.0.mlp.down_proj.weight": "model-00002-of-00002.safetensors",
    "model.layers.0.mlp.gate_proj.weight": "model-00002-of-00002.safetensors",
    "model.layers.0.mlp.up_proj.weight": "model-00002-of-00002.safetensors",
    "model.layers.0.post_attention_layernorm.weight": "model-00002-of-00002.safetensors",
    "model.layers.0.self_attn.k_norm.weight": "model-00001-of-00002.safetensors",
    "model.layers.0.self_attn.k_proj.weight": "model-00001-of-00002.safetensors",
    "model.layers.0.self_attn.o_proj.weight": "model-00001-of-00002.safetensors",
    "model.layers.0.self_attn.q_norm.weight": "model-00001-of-00002.safetensors",
    "model.layers.0.self_attn.q_proj.weight": "model-00001-of-00002.safetensors",
    "model.layers.0.self_attn.v_proj.weight": "model-00001-of-00002.safetensors",
    "model.norm.weight": "model-00002-of-00002.safetensors"
  }
}
)");
}

TEST(SavePretrained, ReplacesEarlierWeightsAndNothingElse) {
  const TemporaryFolder folder;
  const auto saved = folder / "saved";
  std::filesystem::create_directory(saved);
  const std::set<std::string> others = {"tokenizer.json", "model-1-of-2.safetensors",
                                        "model-00001-of-00002.bin", "my-model.safetensors"};
  for (const auto& name : others) write_file(saved / name, "kept");
  const auto expect_only = [&](std::set<std::string> names) {
    names.insert(others.begin(), others.end());
    names.insert("config.json");
    EXPECT_EQ(names_in(saved), names);
    for (const auto& name : others) EXPECT_EQ(test::read_file(saved / name), "kept");
  };
  const auto expect_loads = [&](const CausalLM& model) {
    CausalLM loaded(model.config(), 99);
    load_pretrained(loaded, saved);
    for (const auto& [name, parameter] : model.state_dict()) {
      EXPECT_TRUE(test::bitwise_equal(test::find(loaded.state_dict(), name), parameter)) << name;
    }
  };
  CausalLM first(toy_config(), 1), second(toy_config(), 2), third(toy_config(), 3);
  save_pretrained(first, saved);
  expect_only({"model.safetensors"});
  save_pretrained(second, saved, {.max_shard_bytes = 60'000});
  expect_only({"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
               "model.safetensors.index.json"});
  expect_loads(second);
  save_pretrained(third, saved, {.max_shard_bytes = 40'000});
  expect_only({"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
               "model-00003-of-00003.safetensors", "model.safetensors.index.json"});
  expect_loads(third);
  save_pretrained(first, saved);
  expect_only({"model.safetensors"});
  expect_loads(first);
}

// What a later file cannot be written over stops the call half-way.
TEST(SavePretrained, LeavesNoMixtureWhenItIsInterrupted) {
  const TemporaryFolder folder;
  const auto saved = folder / "saved";
  CausalLM first(toy_config(), 1), second(toy_config(), 2);
  const SavePretrainedOptions two_files = {.max_shard_bytes = 60'000};
  const auto block = saved / "model-00002-of-00002.safetensors";
  const auto interrupted = [&] {
    std::filesystem::remove(block);
    std::filesystem::create_directory(block);
    EXPECT_THROW(save_pretrained(second, saved, two_files), Error);
  };
  save_pretrained(first, saved, two_files);
  interrupted();
  EXPECT_EQ(message_of<ValueError>([&] { load_pretrained(first, saved); }),
            "checkpoint: " + saved.string() +
                " must hold model.safetensors or model.safetensors.index.json, got neither");

  std::filesystem::remove(block);
  save_pretrained(first, saved);
  interrupted();
  CausalLM loaded(toy_config(), 99);
  load_pretrained(loaded, saved);
  for (const auto& [name, parameter] : first.state_dict()) {
    EXPECT_TRUE(test::bitwise_equal(test::find(loaded.state_dict(), name), parameter));
  }
}

TEST(SavePretrained, CanReplaceTheFilesThatAreBeingRead) {
  const TemporaryFolder folder;
  CausalLM first(toy_config(), 1), second(toy_config(), 2);
  save_pretrained(first, folder / "saved");
  const HfCheckpoint reader(folder / "saved");
  save_pretrained(second, folder / "saved");
  const auto bytes = reader.find("model.norm.weight")->bytes();
  const Tensor norm = test::find(first.state_dict(), "model.norm.weight");
  EXPECT_EQ(std::memcmp(bytes.data(), norm.storage().data(), bytes.size()), 0);
}

TEST(SavePretrained, NeedsAPositiveLimit) {
  CausalLM model(toy_config());
  EXPECT_EQ(
      message_of<ValueError>([&] { save_pretrained(model, "nowhere", {.max_shard_bytes = 0}); }),
      "save_pretrained: max_shard_bytes must be at least 1, got 0");
}

}  // namespace
}  // namespace moegrad::models::save_pretrained_test
