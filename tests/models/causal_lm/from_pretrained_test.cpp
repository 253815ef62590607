// SPDX-License-Identifier: Apache-2.0
// Models of every type out of folders and into them.
#include "models/causal_lm/from_pretrained.h"

#include <gmock/gmock.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "framework/io/safetensors.h"
#include "models/causal_lm/config_json.h"
#include "models/causal_lm/load_pretrained.h"
#include "models/causal_lm/save_pretrained.h"
#include "nn/linear.h"
#include "tests/framework/io/files.h"
#include "tests/models/causal_lm/find_tensor.h"
#include "tests/models/causal_lm/random_checkpoint.h"
#include "tests/models/causal_lm/toy_models.h"
#include "tests/testing.h"

namespace moegrad::models::from_pretrained_test {
namespace {

using namespace test;
using ::testing::HasSubstr;

class FromPretrained : public ::testing::TestWithParam<ModelType> {};
INSTANTIATE_TEST_SUITE_P(ModelTypes, FromPretrained, ::testing::ValuesIn(test::kModelTypes));

TEST_P(FromPretrained, ReadsAnyModelType) {
  const test::TemporaryFolder folder;
  const auto config = toy_config_of(GetParam());
  const auto tensors = test::random_checkpoint(config, Dtype::kFloat64);
  save_safetensors(folder / "model.safetensors", tensors, {});
  test::write_file(folder / "config.json", to_json(config));
  const auto model = from_pretrained(folder / ".");
  EXPECT_EQ(model->config().model_type, GetParam());
  const auto own = model->state_dict();
  EXPECT_TRUE(test::bitwise_equal(test::find(own, "model.norm.weight"),
                                  test::find(tensors, "model.norm.weight")));
  const auto batch = test::toy_batch(config.vocab_size);
  EXPECT_TRUE(
      std::isfinite(causal_lm_loss((*model)(batch.tokens, batch.documents), batch.targets, 12, 0.0)
                        .objective.item()));
}

// A checkpoint of GLM-4.5 has a layer more, which predicts a further token. Its config.json may
// have lost the number of such layers.
TEST(FromPretrainedFolder, LayersThatPredictFurtherTokensArePassedOver) {
  const test::TemporaryFolder folder;
  auto config = toy_config_of(ModelType::kGlm4Moe);
  auto tensors = test::random_checkpoint(config, Dtype::kFloat64);
  const auto load = [&](NamedTensors others) {
    for (const auto& [name, tensor] : tensors) others.push_back({name, tensor});
    save_safetensors(folder / "model.safetensors", others, {});
    CausalLM model(config);
    load_pretrained(model, folder / ".");
  };
  const NamedTensors layer = {{"model.layers.3.eh_proj.weight", test::randn({2, 3}, 1)},
                              {"model.layers.3.mlp.gate.weight", test::randn({6, 3}, 2)},
                              {"model.layers.3.shared_head.norm.weight", test::randn({3}, 3)}};
  for (const std::int64_t number : {0, 1, 2}) {
    config.num_nextn_predict_layers = number;
    EXPECT_NO_THROW(load(layer)) << number;
  }
  // A layer of another kind, or none: it may belong to the model.
  config.num_nextn_predict_layers = 0;
  for (const std::string name :
       {"model.layers.3.mlp.gate.weight", "model.layers.3x.eh_proj.weight", "model.layers.x"}) {
    EXPECT_THAT(message_of<ValueError>([&] {
                  load({{name, test::randn({2})}});
                }),
                HasSubstr("must hold the module's tensors alone, got '" + name + "'"));
  }
  EXPECT_THAT(message_of<ValueError>([&] {
                load({layer[0], {"model.layers.4.mlp.gate.weight", test::randn({2})}});
              }),
              HasSubstr("must hold the module's tensors alone, got 'model.layers.4.mlp"));
}

// transformers wrote them until 4.31, and passes over them since.
TEST_P(FromPretrained, FrequenciesOfRopeArePassedOver) {
  const test::TemporaryFolder folder;
  const auto config = toy_config_of(GetParam());
  auto tensors = test::random_checkpoint(config, Dtype::kFloat64);
  const auto load = [&](const std::string& name) {
    tensors.push_back({name, test::randn({3}, 1)});
    save_safetensors(folder / "model.safetensors", tensors, {});
    tensors.pop_back();
    CausalLM model(config);
    load_pretrained(model, folder / ".");
    EXPECT_TRUE(test::bitwise_equal(test::find(model.state_dict(), "model.norm.weight"),
                                    test::find(tensors, "model.norm.weight")));
  };
  EXPECT_NO_THROW(load("model.layers.0.self_attn.rotary_emb.inv_freq"));
  EXPECT_NO_THROW(load("model.rotary_emb.inv_freq"));
  for (const std::string name : {"model.layers.0.self_attn.rotary_emb.inv_freq.weight",
                                 "model.layers.0.self_attn.rotary_emb.cos_cached"}) {
    EXPECT_THAT(message_of<ValueError>([&] { load(name); }),
                HasSubstr("must hold the module's tensors alone, got '" + name + "'"));
  }
}

// What generate() and a trainer of transformers read of it is as it was.
TEST(FromPretrainedFolder, AModelThatIsSavedAgainKeepsTheKeysOfItsConfiguration) {
  const test::TemporaryFolder folder;
  const auto config = toy_config_of(ModelType::kMixtral);
  save_safetensors(folder / "model.safetensors", test::random_checkpoint(config, Dtype::kFloat64),
                   {});
  auto keys = nlohmann::json::parse(to_json(config));
  keys.update({{"eos_token_id", {2, 5}},
               {"bos_token_id", nullptr},
               {"pad_token_id", 0},
               {"output_router_logits", false},
               {"unsloth_version", "2025.3"}});
  test::write_file(folder / "config.json", keys.dump());
  save_pretrained(*from_pretrained(folder / "."), folder / "saved");
  EXPECT_EQ(nlohmann::json::parse(test::read_file(folder / "saved" / "config.json")), keys);
}

TEST(FromPretrainedFolder, WhatIsSavedDoesNotClaimLayersThatItHasNot) {
  const test::TemporaryFolder folder;
  auto config = toy_config_of(ModelType::kGlm4Moe);
  config.num_nextn_predict_layers = 1;
  CausalLM model(config);
  save_pretrained(model, folder / "saved");
  config.num_nextn_predict_layers = 0;
  EXPECT_EQ(from_pretrained(folder / "saved")->config(), config);
}

TEST(FromPretrainedFolder, AModelWithoutItsMixturesIsNotSaved) {
  const test::TemporaryFolder folder;
  CausalLM model(toy_config_of(ModelType::kMixtral));
  const auto dense = std::make_shared<nn::Linear>(
      nn::Linear::Config{.in_features = 20, .out_features = 20, .dtype = Dtype::kFloat64});
  model.replace("model.layers.1.mlp", nn::TensorModule(dense));
  EXPECT_EQ(
      message_of<ValueError>([&] { save_pretrained(model, folder / "saved"); }),
      "save_pretrained: mlp of layer 1 must be the mixture that config.json says, got another "
      "module in its place");
}

TEST(FromPretrainedFolder, AModelFromAFolderIsReadyToEvaluate) {
  const test::TemporaryFolder folder;
  auto config = toy_config_of(ModelType::kMixtral);
  config.router_jitter_noise = 0.1;
  CausalLM model(config);
  save_pretrained(model, folder / "saved");
  const auto loaded = from_pretrained(folder / "saved");
  EXPECT_FALSE(loaded->is_training());
  const auto batch = test::toy_batch(config.vocab_size);
  EXPECT_NO_THROW((*loaded)(batch.tokens, batch.documents));
}

TEST(FromPretrainedFolder, ACheckpointWithoutACorrectionBiasIsRefused) {
  const test::TemporaryFolder folder;
  const auto config = toy_config_of(ModelType::kGlm4Moe);
  auto tensors = test::random_checkpoint(config, Dtype::kFloat64);
  tensors.pop_back();
  save_safetensors(folder / "model.safetensors", tensors, {});
  CausalLM model(config);
  EXPECT_THAT(message_of<ValueError>([&] { load_pretrained(model, folder / "."); }),
              HasSubstr("must have tensor 'model.layers.2.mlp.gate.e_score_correction_bias'"));
}

}  // namespace
}  // namespace moegrad::models::from_pretrained_test
