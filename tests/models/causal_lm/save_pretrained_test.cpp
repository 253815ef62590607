// SPDX-License-Identifier: Apache-2.0
#include "models/causal_lm/save_pretrained.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "framework/io/safetensors.h"
#include "models/causal_lm/config_json.h"
#include "models/causal_lm/from_pretrained.h"
#include "models/causal_lm/load_pretrained.h"
#include "models/hf_checkpoint.h"
#include "tests/framework/io/files.h"
#include "tests/models/causal_lm/find_tensor.h"
#include "tests/models/causal_lm/random_checkpoint.h"
#include "tests/models/causal_lm/toy_models.h"
#include "tests/testing.h"

namespace moegrad::models::save_pretrained_test {
namespace {

using namespace test;

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

/// Loading from `folder` gives the parameters of `model`.
void expect_loads(const std::filesystem::path& folder, const CausalLM& model) {
  CausalLM loaded(model.config(), 99);
  load_pretrained(loaded, folder);
  for (const auto& [name, parameter] : model.state_dict()) {
    EXPECT_TRUE(bitwise_equal(find(loaded.state_dict(), name), parameter)) << name;
  }
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
  CausalLM first(toy_config(), 1), second(toy_config(), 2), third(toy_config(), 3);
  save_pretrained(first, saved);
  expect_only({"model.safetensors"});
  save_pretrained(second, saved, {.max_shard_bytes = 60'000});
  expect_only({"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
               "model.safetensors.index.json"});
  expect_loads(saved, second);
  save_pretrained(third, saved, {.max_shard_bytes = 40'000});
  expect_only({"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
               "model-00003-of-00003.safetensors", "model.safetensors.index.json"});
  expect_loads(saved, third);
  save_pretrained(first, saved);
  expect_only({"model.safetensors"});
  expect_loads(saved, first);
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
    ASSERT_EQ(mkfifo(block.c_str(), 0600), 0);  // which no file takes the place of
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
  expect_loads(saved, first);
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

TEST(SavePretrained, RefusesFilesThatAreLinks) {
  const TemporaryFolder folder;
  CausalLM first(toy_config(), 1), second(toy_config(), 2);
  save_pretrained(first, folder / "a");
  std::filesystem::create_directory(folder / "b");
  const auto contents = [&](const std::string& name) {
    return test::read_file(folder / "a" / name);
  };
  const auto weights = contents("model.safetensors"), config = contents("config.json");
  write_file(folder / "a" / "tokenizer.json", "{}");
  const auto refused = [&](const std::string& name, const std::filesystem::path& target,
                           const SavePretrainedOptions& options = {}) {
    const auto link = folder / "b" / name;
    std::filesystem::create_symlink(target, link);
    EXPECT_EQ(message_of<ValueError>([&] { save_pretrained(second, folder / "b", options); }),
              "save_pretrained: " + link.string() +
                  " must be a file of this folder alone, got a link to " + target.string());
    EXPECT_EQ(names_in(folder / "b"), (std::set<std::string>{name}));
    std::filesystem::remove(link);
  };
  refused("model.safetensors", folder / "a" / "model.safetensors");
  refused("config.json", "../a/config.json");
  refused("config.json", "../nowhere");
  // What would be removed, too.
  refused("model.safetensors.index.json", "../a/config.json");
  refused("model-00001-of-00009.safetensors", "../a/model.safetensors");
  refused("tokenizer.json", "../a/tokenizer.json", {.copy_from = folder / "a"});
  EXPECT_EQ(contents("model.safetensors"), weights);
  EXPECT_EQ(contents("config.json"), config);
  // Other files may be.
  std::filesystem::create_symlink("../a/tokenizer.json", folder / "b" / "tokenizer.json");
  save_pretrained(second, folder / "b");
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "b" / "tokenizer.json"));
}

TEST(SavePretrained, RefusesAFolderInAFilesPlaceAndFilesThatCannotBeCopied) {
  const TemporaryFolder folder;
  CausalLM model(toy_config());
  std::filesystem::create_directories(folder / "a" / "tokenizer.json");
  std::filesystem::create_directories(folder / "b" / "model-00001-of-00002.safetensors");
  EXPECT_EQ(message_of<ValueError>([&] { check_export_folder(folder / "b"); }),
            "save_pretrained: " + (folder / "b" / "model-00001-of-00002.safetensors").string() +
                " must be a file, got a folder");
  const auto copied = folder / "a" / "tokenizer.json";
  EXPECT_EQ(
      message_of<Error>([&] { save_pretrained(model, folder / "c", {.copy_from = folder / "a"}); }),
      "save_pretrained: " + copied.string() + ": must be a readable regular file, got a folder");
  EXPECT_FALSE(std::filesystem::exists(folder / "c"));
  // A link of the Hub's cache whose file has been removed is no file that a model lacks.
  std::filesystem::remove(copied);
  std::filesystem::create_symlink("../nowhere", copied);
  std::filesystem::create_directory(folder / "c");
  write_file(folder / "c" / "tokenizer.json", "{}");
  EXPECT_EQ(
      message_of<Error>([&] { save_pretrained(model, folder / "c", {.copy_from = folder / "a"}); }),
      "save_pretrained: " + copied.string() +
          ": must be a readable regular file, got No such file or directory");
  EXPECT_EQ(names_in(folder / "c"), std::set<std::string>{"tokenizer.json"});
}

TEST(SavePretrained, WritesIntoTheFolderThatALinkLeadsTo) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "real");
  std::filesystem::create_directory_symlink("real", folder / "link");
  CausalLM model(toy_config());
  save_pretrained(model, folder / "link");
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  EXPECT_EQ(names_in(folder / "real"), (std::set<std::string>{"config.json", "model.safetensors"}));
}

TEST(SavePretrained, LeavesTheOtherNameOfAFileAsItIs) {
  const TemporaryFolder folder;
  CausalLM first(toy_config(), 1), second(toy_config(true), 2);
  save_pretrained(first, folder / "a");
  std::filesystem::create_directory(folder / "b");
  std::map<std::string, std::string> before;
  for (const auto& name : names_in(folder / "a")) {
    before[name] = test::read_file(folder / "a" / name);
    std::filesystem::create_hard_link(folder / "a" / name, folder / "b" / name);
  }
  save_pretrained(second, folder / "b");
  for (const auto& [name, bytes] : before) {
    EXPECT_EQ(test::read_file(folder / "a" / name), bytes) << name;
    EXPECT_NE(test::read_file(folder / "b" / name), bytes) << name;
  }
}

TEST(SavePretrained, CopiesTheTokenizerAndWhatGenerateReads) {
  const TemporaryFolder folder;
  CausalLM model(toy_config());
  const std::set<std::string> copied = {"generation_config.json",
                                        "tokenizer.json",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "vocab.json",
                                        "merges.txt",
                                        "tokenizer.model",
                                        "chat_template.jinja",
                                        "chat_template.json"};
  std::filesystem::create_directory(folder / "a");
  std::filesystem::create_directory(folder / "saved");
  for (const auto& name : copied) write_file(folder / "a" / name, name);
  write_file(folder / "a" / "README.md", "not a part of a model");
  write_file(folder / "a" / "tokenizer.json", std::string(3'000'000, 'x'));
  write_file(folder / "saved" / "vocab.json", "of an earlier one");
  save_pretrained(model, folder / "saved", {.copy_from = folder / "a"});
  auto expected = copied;
  expected.insert({"config.json", "model.safetensors"});
  EXPECT_EQ(names_in(folder / "saved"), expected);
  for (const auto& name : copied) {
    EXPECT_EQ(test::read_file(folder / "saved" / name), test::read_file(folder / "a" / name));
  }
  // A tokenizer is not one of two models.
  std::filesystem::create_directory(folder / "b");
  write_file(folder / "b" / "tokenizer.model", "b");
  write_file(folder / "saved" / "notes.txt", "not a part of a model");
  save_pretrained(model, folder / "saved", {.copy_from = folder / "b"});
  EXPECT_EQ(names_in(folder / "saved"),
            (std::set<std::string>{"config.json", "generation_config.json", "model.safetensors",
                                   "notes.txt", "tokenizer.model"}));
  // Into the folder itself, and from one that has none of them.
  save_pretrained(model, folder / "a", {.copy_from = folder / "."});
  save_pretrained(model, folder / "a", {.copy_from = folder / "a"});
  EXPECT_EQ(test::read_file(folder / "a" / "vocab.json"), "vocab.json");
}

TEST(SavePretrained, WritesParametersInAsManyBitsAsAsked) {
  const TemporaryFolder folder;
  auto config = test::toy_config_of(ModelType::kGlm4Moe);
  config.dtype = Dtype::kFloat32;
  CausalLM model(config, 1);
  save_pretrained(model, folder / "saved", {.dtype = Dtype::kBFloat16});
  std::int64_t rounded = 0, kept = 0;
  const auto state = model.state_dict();
  const HfCheckpoint checkpoint(folder / "saved");
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    const bool is_buffer = name.ends_with("e_score_correction_bias");
    EXPECT_EQ(tensor.entry->dtype, is_buffer ? SafetensorsDtype::kF32 : SafetensorsDtype::kBF16);
    (is_buffer ? kept : rounded) += 1;
  }
  EXPECT_EQ(kept, 2);
  EXPECT_GT(rounded, 20);
  const auto saved = load_safetensors(folder / "saved" / "model.safetensors");
  EXPECT_TRUE(test::bitwise_equal(
      test::find(saved, "lm_head.weight"),
      to_dtype(test::find(state, "lm_head.weight").detach(), Dtype::kBFloat16)));
  const auto json = nlohmann::json::parse(test::read_file(folder / "saved" / "config.json"));
  EXPECT_EQ(json["torch_dtype"], "bfloat16");
  // Read again, they are what bfloat16 has kept of them.
  const auto loaded = from_pretrained(folder / "saved");
  EXPECT_EQ(loaded->config().dtype, Dtype::kFloat32);
  for (const auto& [name, tensor] : loaded->state_dict()) {
    const Tensor own = test::find(state, name).detach();
    const bool is_buffer = name.ends_with("e_score_correction_bias");
    EXPECT_TRUE(test::bitwise_equal(
        tensor.detach(),
        is_buffer ? own : to_dtype(to_dtype(own, Dtype::kBFloat16), Dtype::kFloat32)))
        << name;
  }
  EXPECT_EQ(message_of<DtypeError>(
                [&] { save_pretrained(model, folder / "saved", {.dtype = Dtype::kInt64}); }),
            "save_pretrained: dtype must be of reals, got int64");
}

TEST(SavePretrained, NeedsAPositiveLimit) {
  CausalLM model(toy_config());
  EXPECT_EQ(
      message_of<ValueError>([&] { save_pretrained(model, "nowhere", {.max_shard_bytes = 0}); }),
      "save_pretrained: max_shard_bytes must be at least 1, got 0");
}

}  // namespace
}  // namespace moegrad::models::save_pretrained_test
