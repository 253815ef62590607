// SPDX-License-Identifier: Apache-2.0
#include "models/causal_lm/model.h"

#include <algorithm>
#include <utility>

#include "framework/autograd/gradient_sum.h"
#include "framework/runtime/arena.h"
#include "framework/runtime/rank_context.h"
#include "nn/recompute.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/linear_cross_entropy.h"
#include "ops/reduce.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"
#include "ops/views.h"
#include "tests/models/causal_lm/expert_layouts.h"
#include "tests/models/causal_lm/toy_models.h"
#include "tests/testing.h"

namespace moegrad::models::causal_lm_test {
namespace {

using namespace test;

std::vector<std::string> names_of(const NamedTensors& tensors) {
  std::vector<std::string> names;
  for (const auto& item : tensors) names.push_back(item.name);
  return names;
}

void expect_same_bits(const test::Gradients& a, const test::Gradients& b) {
  ASSERT_EQ(a.output.logits.defined(), b.output.logits.defined());
  if (a.output.logits.defined()) {
    EXPECT_TRUE(bitwise_equal(a.output.logits, b.output.logits));
  }
  EXPECT_EQ(a.loss.objective.item(), b.loss.objective.item());
  EXPECT_EQ(a.output.tokens_per_expert, b.output.tokens_per_expert);
  ASSERT_EQ(a.output.expert_indices.size(), b.output.expert_indices.size());
  for (std::size_t i = 0; i < a.output.expert_indices.size(); ++i) {
    EXPECT_TRUE(bitwise_equal(a.output.expert_indices[i], b.output.expert_indices[i]));
    EXPECT_TRUE(bitwise_equal(a.output.router_logits[i], b.output.router_logits[i]));
    EXPECT_TRUE(bitwise_equal(a.output.routing_weights[i], b.output.routing_weights[i]));
  }
  ASSERT_EQ(names_of(a.parameters), names_of(b.parameters));
  for (std::size_t i = 0; i < a.parameters.size(); ++i) {
    EXPECT_TRUE(bitwise_equal(a.parameters[i].tensor, b.parameters[i].tensor))
        << a.parameters[i].name;
  }
}

TEST(CausalLM, CarriesHuggingFaceNamesAndShapes) {
  auto config = toy_config();
  config.mlp_only_layers = {1};
  const CausalLM model(config);
  const auto parameters = model.named_parameters();
  const std::vector<std::string> expected = {"model.embed_tokens.weight",
                                             "model.layers.0.self_attn.q_proj.weight",
                                             "model.layers.0.self_attn.k_proj.weight",
                                             "model.layers.0.self_attn.v_proj.weight",
                                             "model.layers.0.self_attn.o_proj.weight",
                                             "model.layers.0.self_attn.q_norm.weight",
                                             "model.layers.0.self_attn.k_norm.weight",
                                             "model.layers.0.mlp.gate.weight",
                                             "model.layers.0.mlp.experts.gate_up_proj",
                                             "model.layers.0.mlp.experts.down_proj",
                                             "model.layers.0.input_layernorm.weight",
                                             "model.layers.0.post_attention_layernorm.weight",
                                             "model.layers.1.self_attn.q_proj.weight",
                                             "model.layers.1.self_attn.k_proj.weight",
                                             "model.layers.1.self_attn.v_proj.weight",
                                             "model.layers.1.self_attn.o_proj.weight",
                                             "model.layers.1.self_attn.q_norm.weight",
                                             "model.layers.1.self_attn.k_norm.weight",
                                             "model.layers.1.mlp.gate_proj.weight",
                                             "model.layers.1.mlp.up_proj.weight",
                                             "model.layers.1.mlp.down_proj.weight",
                                             "model.layers.1.input_layernorm.weight",
                                             "model.layers.1.post_attention_layernorm.weight",
                                             "model.norm.weight",
                                             "lm_head.weight"};
  EXPECT_EQ(names_of(parameters), expected);
  const std::vector<Shape> shapes = {{37, 20}, {24, 20}, {12, 20},  {12, 20}, {20, 24}, {6},
                                     {6},      {5, 20},  {100, 22}, {55, 20}, {20},     {20}};
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    EXPECT_EQ(parameters[i].tensor.shape(), shapes[i]) << parameters[i].name;
  }
}

TEST(CausalLM, HasAsManyParametersAsTheFormulaSays) {
  auto config = toy_config();
  config.num_hidden_layers = 4;
  config.decoder_sparse_step = 2;
  for (const bool tied : {false, true}) {
    config.tie_word_embeddings = tied;
    const CausalLM model(config);
    std::int64_t elements = 0;
    for (const auto& [name, parameter] : model.named_parameters()) elements += parameter.numel();
    EXPECT_EQ(elements, parameter_count(config));
  }
}

TEST(CausalLM, TiesTheHeadToTheEmbedding) {
  auto config = toy_config();
  config.tie_word_embeddings = true;
  const CausalLM model(config);
  const auto slots = model.parameter_slots();
  EXPECT_EQ(slots.front().name, "model.embed_tokens.weight");
  EXPECT_EQ(slots.back().name, "lm_head.weight");
  EXPECT_TRUE(slots.front().tensor->is(*slots.back().tensor));
  EXPECT_EQ(model.named_parameters().back().name, "model.norm.weight");
}

TEST(CausalLM, OutputsHaveTheirShapes) {
  const auto config = toy_config();
  CausalLM model(config);
  const auto batch = toy_batch(config.vocab_size);
  const auto output = model(batch.tokens, batch.documents);
  EXPECT_EQ(output.logits.shape(), (Shape{13, 37}));
  ASSERT_EQ(output.router_logits.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(output.router_logits[i].shape(), (Shape{13, 5}));
    EXPECT_EQ(output.expert_indices[i].shape(), (Shape{13, 2}));
    std::int64_t rows = 0;
    for (const auto count : output.tokens_per_expert[i]) rows += count;
    EXPECT_EQ(rows, 26);
  }
}

void recompute_all(CausalLM& model) {
  for (auto& layer : model.layers()) nn::recompute(layer);
}

TEST(CausalLM, ReturnsHiddenStatesWhenAskedTo) {
  auto config = toy_config();
  config.tie_word_embeddings = true;
  CausalLM model(config);
  test::jitter_norms(model);
  const auto batch = toy_batch(config.vocab_size);
  EXPECT_TRUE(model(batch.tokens, batch.documents).hidden_states.empty());
  for (const bool recompute : {false, true}) {
    if (recompute) recompute_all(model);
    const auto output = model(batch.tokens, batch.documents, {.output_hidden_states = true});
    ASSERT_EQ(output.hidden_states.size(), 3U);
    const Tensor embedding = model.named_parameters()[0].tensor;
    EXPECT_TRUE(
        bitwise_equal(output.hidden_states[0], ops::embedding(batch.tokens, embedding).detach()));
    EXPECT_TRUE(bitwise_equal(output.logits, ops::linear(output.hidden_states[2], embedding)));
    // The second layer's input, so the first layer's output, carried on by hand.
    const nn::SequenceContext context = {
        .documents = batch.documents,
        .rope = ops::rope_table(batch.documents.positions(), config.head_dim, config.rope_theta,
                                config.dtype)};
    const Tensor last = model.layers()[1](output.hidden_states[1], context).hidden;
    const Tensor norm = model.named_parameters().back().tensor;
    EXPECT_TRUE(
        bitwise_equal(output.hidden_states[2], ops::rms_norm(last, norm, config.rms_norm_eps)));
  }
}

TEST(CausalLM, BothExpertOrientationsGiveTheSameBits) {
  for (const auto dtype : {Dtype::kFloat64, Dtype::kFloat32}) {
    auto config = toy_config();
    config.dtype = dtype;
    CausalLM first(config, 5), second(test::hugging_face_oriented(config), 5);
    const auto batch = toy_batch(config.vocab_size);
    auto a = gradients_of(first, batch), b = gradients_of(second, batch);
    for (const auto& slot : first.parameter_slots()) {
      const auto found = std::ranges::find(a.parameters, slot.name, &NamedTensor::name);
      ASSERT_NE(found, a.parameters.end());
      found->tensor = test::to_hugging_face(found->tensor, slot.layout);
    }
    expect_same_bits(a, b);
  }
}

TEST(CausalLM, StoragesCarryTheNamesOfTheirParameters) {
  for (const bool tied : {false, true}) {
    auto config = toy_config();
    config.tie_word_embeddings = tied;
    const CausalLM model(config);
    for (const auto& [name, parameter] : model.named_parameters()) {
      EXPECT_EQ(parameter.storage().name(), name);
    }
  }
}

TEST(CausalLM, RecomputationGivesTheSameBitsAndKeepsLess) {
  auto config = toy_config();
  config.num_hidden_layers = 4;
  config.mlp_only_layers = {1};
  CausalLM model(config, 5), recomputed(config, 5);
  const auto is_one_of_three = [](std::string_view path) {
    return path.starts_with("model.layers.") && path.size() == 14 && path.back() < '3';
  };
  EXPECT_EQ(nn::recompute(recomputed, is_one_of_three), 3);
  const auto batch = toy_batch(config.vocab_size);
  const auto kept = [&](CausalLM& which) {
    const auto& arena = RankContext::current().arena();
    const auto before = arena->live().total();
    const auto output = which(batch.tokens, batch.documents);
    return arena->live().total() - before;
  };
  EXPECT_LT(kept(recomputed), kept(model) / 2);
  expect_same_bits(gradients_of(model, batch), gradients_of(recomputed, batch));
}

TEST(CausalLM, WithTargetsItGivesTheSameLossAndGradientsWithoutLogits) {
  for (const auto& [tied, bf16] :
       {std::pair(false, false), {true, false}, {false, true}, {true, true}}) {
    auto config = toy_config();
    config.tie_word_embeddings = tied;
    if (bf16) config.dtype = Dtype::kFloat32;
    CausalLM model(config, 5);
    if (bf16) model.compute_in(Dtype::kBFloat16);
    // In two pieces.
    const auto batch = toy_batch(config.vocab_size, {ops::kLinearCrossEntropyRows, 4});
    auto expected = gradients_of(model, batch);
    const auto got = gradients_of(model, batch, {.targets = batch.targets});
    EXPECT_FALSE(got.output.logits.defined());
    EXPECT_EQ(got.loss.ce_sum.item(), expected.loss.ce_sum.item());
    expected.output.logits = {};
    expect_same_bits(got, expected);
  }
}

/// The gradients of four micro-batches, by parameter.
NamedTensors step_gradients(CausalLM& model, bool linear_cross_entropy) {
  model.zero_grad();
  TensorList tensors;
  for (const auto& [name, parameter] : model.named_parameters()) tensors.push_back(parameter);
  GradientSum gradients(tensors);
  for (const std::int64_t length : {5, 6, 7, 9}) {
    const auto batch = toy_batch(model.config().vocab_size, {length, 4});
    CausalLM::ForwardOptions options;
    if (linear_cross_entropy) options.targets = batch.targets;
    const auto output = model(batch.tokens, batch.documents, options);
    causal_lm_loss(output, batch.targets, 12, 0.05).objective.backward();
    gradients.push();
  }
  gradients.finish();
  NamedTensors result;
  for (const auto& [name, parameter] : model.named_parameters()) {
    result.push_back({name, parameter.grad()});
  }
  return result;
}

// So that each end of a pipeline may sum its own.
TEST(CausalLM, SumsTheGradientsOfATiedEmbeddingAndHeadApartAndAddsThemLast) {
  auto config = toy_config();
  CausalLM untied(config, 5);
  config.tie_word_embeddings = true;
  CausalLM tied(config, 5);
  auto values = tied.state_dict();
  values.push_back({"lm_head.weight", values.front().tensor});
  untied.load_state_dict(values);
  for (const bool linear_cross_entropy : {false, true}) {
    const auto whole = step_gradients(tied, linear_cross_entropy);
    auto parts = step_gradients(untied, linear_cross_entropy);
    add_(parts.front().tensor, parts.back().tensor);
    parts.pop_back();
    ASSERT_EQ(names_of(whole), names_of(parts));
    for (std::size_t i = 0; i < whole.size(); ++i) {
      EXPECT_TRUE(bitwise_equal(whole[i].tensor, parts[i].tensor)) << whole[i].name;
    }
  }
}

TEST(CausalLM, AReplayOfItsOwnChoicesChangesNothing) {
  const auto config = toy_config();
  CausalLM model(config, 5);
  const auto batch = toy_batch(config.vocab_size);
  const auto first = gradients_of(model, batch);
  const TensorList choices = first.output.expert_indices;
  expect_same_bits(first, gradients_of(model, batch, {.replay_expert_indices = choices}));

  TensorList others;
  for (const auto& chosen : choices) {
    Tensor moved = clone(chosen);
    for (auto& expert : moved.mutable_data<std::int64_t>()) expert = (expert + 1) % 5;
    others.push_back(moved);
  }
  const auto second = gradients_of(model, batch, {.replay_expert_indices = others});
  recompute_all(model);
  expect_same_bits(second, gradients_of(model, batch, {.replay_expert_indices = others}));
  EXPECT_TRUE(bitwise_equal(second.output.expert_indices[1], others[1]));
  EXPECT_FALSE(bitwise_equal(second.output.logits, first.output.logits));
}

TEST(CausalLM, ADocumentGivesTheSameBitsAloneAsPacked) {
  const auto config = toy_config();
  CausalLM model(config, 5);
  const auto batch = toy_batch(config.vocab_size, {5, 0, 8});
  const Tensor packed = model(batch.tokens, batch.documents).logits;
  const Tensor alone = model(clone(ops::narrow(batch.tokens, 0, 5, 8))).logits;
  EXPECT_TRUE(bitwise_equal(clone(ops::narrow(packed.detach(), 0, 5, 8)), alone));
}

TEST(CausalLM, PositionsCanBeGiven) {
  const auto config = toy_config();
  CausalLM model(config, 5);
  const auto batch = toy_batch(config.vocab_size, {4});
  const auto logits = [&](std::vector<std::int64_t> positions) {
    return model(batch.tokens, batch.documents, {.positions = Tensor::from(positions, {4})}).logits;
  };
  EXPECT_TRUE(bitwise_equal(logits({0, 1, 2, 3}), model(batch.tokens, batch.documents).logits));
  // Rotary angles are relative: shifting all positions changes nothing but rounding.
  EXPECT_TRUE(test::all_close(logits({7, 8, 9, 10}), logits({0, 1, 2, 3}), 1e-9, 1e-9));
  EXPECT_FALSE(test::all_close(logits({0, 2, 4, 6}), logits({0, 1, 2, 3}), 1e-3, 1e-3));
}

TEST(DecoderLayer, NodesCalledOneByOneGiveWhatForwardGives) {
  const auto config = toy_config();
  CausalLM model(config, 5);
  auto& layer = model.layers()[0];
  const Tensor hidden = test::variable({7, config.hidden_size});
  const auto documents = Documents::of_lengths({3, 4});
  const nn::SequenceContext context = {
      .documents = documents,
      .rope = ops::rope_table(documents.positions(), 6, 1e4, Dtype::kFloat64)};
  const auto whole = layer(hidden, context);
  int mixture_calls = 0;
  for (const auto& [path, module] : layer.named_modules()) {
    if (path == "mlp") module->register_forward_hook([&](nn::Module&) { ++mixture_calls; });
  }
  const auto attended = layer.attend(hidden, context, {});
  const auto dispatched = layer.dispatch(attended);
  const auto output = layer.combine(layer.experts(dispatched), dispatched, attended);
  EXPECT_TRUE(bitwise_equal(output.hidden, whole.hidden));
  EXPECT_TRUE(bitwise_equal(output.router_logits, whole.router_logits));
  EXPECT_TRUE(bitwise_equal(output.expert_indices, whole.expert_indices));
  EXPECT_EQ(output.tokens_per_expert, whole.tokens_per_expert);
  EXPECT_EQ(mixture_calls, 4);
}

TEST(DecoderLayer, ADenseLayerHasNoNodes) {
  auto config = toy_config();
  config.mlp_only_layers = {0};
  CausalLM model(config, 5);
  auto& layer = model.layers()[0];
  const std::string expected = "DecoderLayer: nodes need a mixture layer, got a dense one";
  EXPECT_EQ(message_of<Error>([&] { layer.attend(Tensor(), {}, {}); }), expected);
  EXPECT_EQ(message_of<Error>([&] { layer.dispatch({}); }), expected);
  EXPECT_EQ(message_of<Error>([&] { layer.experts({}); }), expected);
  EXPECT_EQ(message_of<Error>([&] { layer.combine(Tensor(), {}, {}); }), expected);
}

TEST(CausalLM, StateDictGoesIntoAnotherModel) {
  const auto config = toy_config();
  CausalLM first(config, 1), second(config, 2);
  const auto batch = toy_batch(config.vocab_size);
  const Tensor expected = first(batch.tokens, batch.documents).logits;
  EXPECT_FALSE(bitwise_equal(second(batch.tokens, batch.documents).logits, expected));
  second.load_state_dict(first.state_dict());
  EXPECT_TRUE(bitwise_equal(second(batch.tokens, batch.documents).logits, expected));
  auto state = first.state_dict();
  state.erase(state.begin());
  EXPECT_EQ(message_of<Error>([&] { second.load_state_dict(state); }),
            "load_state_dict: missing key 'model.embed_tokens.weight'");
}

TEST(CausalLM, RejectsInputsThatDoNotFit) {
  const auto config = toy_config();
  CausalLM model(config);
  const auto tokens = [](std::vector<std::int64_t> ids) {
    return Tensor::from(ids, {std::ssize(ids)});
  };
  EXPECT_EQ(message_of<ValueError>([&] {
              model(tokens({1, 37}));
            }),
            "embedding: token id must be in [0, 37), got 37 at position 1; in module "
            "model.embed_tokens");
  EXPECT_EQ(message_of<ShapeError>([&] {
              model(Tensor::from(std::vector<std::int64_t>{1}, {1, 1}));
            }),
            "CausalLM: tokens must be [T], got [1, 1]");
  EXPECT_EQ(message_of<ValueError>([&] {
              model(tokens({1, 2}), Documents::one(3));
            }),
            "CausalLM: documents must have the 2 tokens, got 3");
  const TensorList one = {Tensor()};
  EXPECT_EQ(message_of<ValueError>([&] { model(tokens({1}), {}, {.replay_expert_indices = one}); }),
            "CausalLM: replay_expert_indices must have 2 entries, one per mixture layer, got 1");
  EXPECT_EQ(message_of<ShapeError>([&] {
              model(tokens({1}), {}, {.positions = tokens({0, 1})});
            }),
            "CausalLM: positions must be [1] to match tokens, got [2]");
  EXPECT_EQ(message_of<ShapeError>([&] {
              model(tokens({1}), {}, {.targets = tokens({0, 1})});
            }),
            "linear_cross_entropy: targets must be [1], one per token, got [2]; in module lm_head");
}

}  // namespace
}  // namespace moegrad::models::causal_lm_test
