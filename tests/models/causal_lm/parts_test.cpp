// SPDX-License-Identifier: Apache-2.0
// A model built in parts, as the stages of a pipeline have them.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "models/causal_lm/load_pretrained.h"
#include "models/causal_lm/loss.h"
#include "models/causal_lm/save_pretrained.h"
#include "nn/recompute.h"
#include "tests/framework/io/files.h"
#include "tests/models/causal_lm/toy_models.h"
#include "tests/testing.h"

namespace moegrad::models::causal_lm_parts_test {
namespace {

using namespace test;

CausalLMConfig four_layers() {
  auto config = toy_config();
  config.num_hidden_layers = 4;
  config.mlp_only_layers = {1};
  return config;
}

std::vector<std::string> names_of(const nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& parameter : module.named_parameters()) names.push_back(parameter.name);
  return names;
}

TEST(CausalLMParts, HaveTheNamesAndWeightsOfTheWholeModel) {
  const auto config = four_layers();
  const CausalLM whole(config, 5);
  const CausalLM first(config, 5, {.end = 1, .head = false});
  const CausalLM second(config, 5, {.begin = 1, .end = 3, .embedding = false, .head = false});
  const CausalLM third(config, 5, {.begin = 3, .embedding = false});
  NamedTensors parts;
  for (const auto* part : {&first, &second, &third}) {
    for (const auto& parameter : part->named_parameters()) parts.push_back(parameter);
  }
  const auto all = whole.named_parameters();
  ASSERT_EQ(parts.size(), all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(parts[i].name, all[i].name);
    EXPECT_TRUE(bitwise_equal(parts[i].tensor.detach(), all[i].tensor.detach())) << all[i].name;
  }
  EXPECT_EQ(names_of(first)[0], "model.embed_tokens.weight");
  EXPECT_TRUE(names_of(second)[0].starts_with("model.layers.1."));
  EXPECT_EQ(names_of(third).back(), "lm_head.weight");
  // Only the embedding; only the head.
  EXPECT_EQ(names_of(CausalLM(config, 5, {.end = 0, .head = false})).size(), 1U);
  EXPECT_EQ(names_of(CausalLM(config, 5, {.begin = 4, .embedding = false})).size(), 2U);
}

/// Losses and gradients by name.
struct Results {
  Tensor logits, objective;
  NamedTensors gradients;
};

Results results_of(const std::vector<CausalLM*>& parts, const test::Batch& batch,
                   bool linear_cross_entropy) {
  CausalLM::Output all;
  Tensor hidden;
  for (auto* part : parts) {
    CausalLM::ForwardOptions options = {.hidden = hidden};
    if (linear_cross_entropy && part == parts.back()) options.targets = batch.targets;
    auto output = (*part)(batch.tokens, batch.documents, options);
    EXPECT_EQ(output.hidden.defined(), part != parts.back());
    hidden = output.hidden;
    const auto append = [](TensorList& to, const TensorList& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    append(all.router_logits, output.router_logits);
    append(all.expert_indices, output.expert_indices);
    all.logits = output.logits;
    all.ce_sum = output.ce_sum;
  }
  const auto loss = causal_lm_loss(all, batch.targets, 7, 0.05);
  loss.objective.backward();
  Results results = {.logits = all.logits, .objective = loss.objective.detach(), .gradients = {}};
  for (auto* part : parts) {
    for (const auto& [name, parameter] : part->named_parameters()) {
      results.gradients.push_back({name, parameter.grad()});
    }
  }
  return results;
}

TEST(CausalLMParts, OneAfterTheOtherHaveTheBitsOfTheWholeModel) {
  const auto config = four_layers();
  const auto batch = toy_batch(config.vocab_size);
  for (const bool linear_cross_entropy : {false, true}) {
    for (const std::int64_t cut : {0, 1, 2, 4}) {
      for (const bool recompute : {false, true}) {
        CausalLM whole(config, 5);
        CausalLM first(config, 5, {.end = cut, .head = false});
        CausalLM second(config, 5, {.begin = cut, .embedding = false});
        if (recompute) {
          const auto is_layer = [](std::string_view path) {
            return path.starts_with("model.layers.") && path.size() == 14;
          };
          EXPECT_EQ(nn::recompute(first, is_layer) + nn::recompute(second, is_layer), 4);
        }
        const auto expected = results_of({&whole}, batch, linear_cross_entropy);
        const auto got = results_of({&first, &second}, batch, linear_cross_entropy);
        EXPECT_TRUE(bitwise_equal(got.objective, expected.objective));
        if (!linear_cross_entropy) {
          EXPECT_TRUE(bitwise_equal(got.logits.detach(), expected.logits.detach()));
        }
        ASSERT_EQ(got.gradients.size(), expected.gradients.size());
        for (std::size_t i = 0; i < got.gradients.size(); ++i) {
          EXPECT_EQ(got.gradients[i].name, expected.gradients[i].name);
          EXPECT_TRUE(bitwise_equal(got.gradients[i].tensor, expected.gradients[i].tensor))
              << cut << ' ' << got.gradients[i].name;
        }
      }
    }
  }
}

TEST(CausalLMParts, LoadTogetherIntoTheWholeAndFromIt) {
  const auto config = four_layers();
  CausalLM first(config, 8, {.end = 2, .head = false});
  CausalLM second(config, 9, {.begin = 2, .embedding = false});
  NamedTensors state = first.state_dict();
  for (const auto& tensor : second.state_dict()) state.push_back(tensor);
  CausalLM whole(config, 1);
  whole.load_state_dict(state);
  const auto loaded = whole.state_dict();
  for (std::size_t i = 0; i < state.size(); ++i) {
    EXPECT_TRUE(bitwise_equal(loaded[i].tensor, state[i].tensor)) << state[i].name;
  }
  // A part takes its own weights of Hugging Face's file.
  const test::TemporaryFolder folder;
  save_pretrained(whole, folder / "saved");
  CausalLM part(config, 3, {.begin = 2, .end = 3, .embedding = false, .head = false});
  load_pretrained(part, folder / "saved");
  for (const auto& [name, tensor] : part.state_dict()) {
    const auto same = std::ranges::find(loaded, name, &NamedTensor::name);
    ASSERT_NE(same, loaded.end()) << name;
    EXPECT_TRUE(bitwise_equal(tensor, same->tensor)) << name;
  }
}

// What a part is given in its options are inputs like others.
TEST(CausalLMParts, GiveTheirInputItsGradientWhenTheyAreRecomputed) {
  const auto config = four_layers();
  const auto batch = toy_batch(config.vocab_size);
  const auto gradients = [&](bool recomputed) {
    CausalLM part(config, 5, {.begin = 2, .embedding = false});
    if (recomputed) nn::recompute(part);
    const Tensor given = test::variable({batch.tokens.numel(), config.hidden_size});
    CausalLM::ForwardOptions options = {.hidden = ops::mul(given, 3), .targets = batch.targets};
    const Tensor loss = part(batch.tokens, batch.documents, options).ce_sum;
    options = {};  // backward must not need it
    loss.backward();
    TensorList result = {loss.detach(), given.grad()};
    for (const auto& parameter : part.named_parameters()) result.push_back(parameter.tensor.grad());
    return result;
  };
  const auto expected = gradients(false), got = gradients(true);
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(got[i].defined() && expected[i].defined()) << i;
    EXPECT_TRUE(bitwise_equal(got[i], expected[i])) << i;
  }
}

TEST(CausalLMParts, AreNoModelThatOthersLoad) {
  const test::TemporaryFolder folder;
  for (const auto& part : {CausalLMPart{.end = 3}, CausalLMPart{.begin = 1},
                           CausalLMPart{.embedding = false}, CausalLMPart{.head = false}}) {
    CausalLM model(four_layers(), 1, part);
    EXPECT_FALSE(model.is_whole());
    EXPECT_EQ(message_of<ValueError>([&] { save_pretrained(model, folder / "saved"); }),
              "save_pretrained: model must be whole, got a part; save a checkpoint instead");
    EXPECT_FALSE(std::filesystem::exists(folder / "saved"));
  }
  EXPECT_TRUE(CausalLM(four_layers(), 1).is_whole());
}

TEST(CausalLMParts, KnowWhichNamesAreElsewhere) {
  const CausalLM middle(four_layers(), 1,
                        {.begin = 1, .end = 3, .embedding = false, .head = false});
  for (const auto* name : {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight",
                           "model.layers.0.mlp.gate.weight", "model.layers.3.any"}) {
    EXPECT_TRUE(middle.is_elsewhere(name)) << name;
  }
  // Its own, or of no part.
  for (const auto* name :
       {"model.layers.1.mlp.gate.weight", "model.layers.2.any", "model.layers.4.any",
        "model.layers.-1.any", "model.layers.0", "model.layers.0x.any", "model.layers..any",
        "model.layers.x.any", "model.layers.", "layers.0.any", "lm_head", ""}) {
    EXPECT_FALSE(middle.is_elsewhere(name)) << name;
  }
  const CausalLM whole(four_layers(), 1);
  EXPECT_FALSE(whole.is_elsewhere("model.embed_tokens.weight"));
  EXPECT_FALSE(whole.is_elsewhere("lm_head.weight"));
}

TEST(CausalLMParts, RejectWhatDoesNotFit) {
  const auto config = four_layers();
  const auto made = [&](const CausalLMPart& part) {
    return message_of<ValueError>([&] { CausalLM(config, 1, part); });
  };
  EXPECT_EQ(made({.begin = -1}),
            "CausalLM: the layers of a part must be within [0, 4), got [-1, 4)");
  EXPECT_EQ(made({.end = 5}), "CausalLM: the layers of a part must be within [0, 4), got [0, 5)");
  EXPECT_EQ(made({.begin = 3, .end = 2}),
            "CausalLM: the layers of a part must be within [0, 4), got [3, 2)");
  auto tied = config;
  tied.tie_word_embeddings = true;
  EXPECT_EQ(message_of<ValueError>([&] { CausalLM(tied, 1, {.head = false}); }),
            "CausalLM: tied word embeddings must be in one part, got a part with the embedding "
            "alone");
  EXPECT_EQ(message_of<ValueError>([&] { CausalLM(tied, 1, {.embedding = false}); }),
            "CausalLM: tied word embeddings must be in one part, got a part with the head alone");
  EXPECT_NO_THROW(CausalLM(tied, 1, {.begin = 1, .end = 2, .embedding = false, .head = false}));

  const auto batch = toy_batch(config.vocab_size);
  const auto tokens = batch.tokens.numel();
  CausalLM first(config, 1, {.end = 2, .head = false});
  CausalLM second(config, 1, {.begin = 2, .embedding = false});
  const Tensor hidden = Tensor::zeros({tokens, config.hidden_size}, config.dtype);
  EXPECT_EQ(
      message_of<ValueError>([&] { first(batch.tokens, batch.documents, {.hidden = hidden}); }),
      "CausalLM: hidden must be given to a part without embedding alone");
  EXPECT_EQ(message_of<ValueError>([&] { second(batch.tokens, batch.documents); }),
            "CausalLM: a part without embedding needs options.hidden, got none");
  const Tensor narrow = Tensor::zeros({tokens, 1}, config.dtype);
  EXPECT_TRUE(message_of<ShapeError>([&] {
                second(batch.tokens, batch.documents, {.hidden = narrow});
              }).starts_with("CausalLM: hidden must be ["));
  EXPECT_EQ(message_of<ValueError>(
                [&] { first(batch.tokens, batch.documents, {.targets = batch.targets}); }),
            "CausalLM: targets must be given to the part with the head alone");
  const TensorList replay(3);
  EXPECT_EQ(message_of<ValueError>(
                [&] { first(batch.tokens, batch.documents, {.replay_expert_indices = replay}); }),
            "CausalLM: replay_expert_indices must have 1 entries, one per mixture layer, got 3");
}

}  // namespace
}  // namespace moegrad::models::causal_lm_parts_test
