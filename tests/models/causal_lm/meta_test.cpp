// SPDX-License-Identifier: Apache-2.0
#include "framework/tensor/meta.h"

#include <map>
#include <memory>

#include "framework/distributed/shard_spec.h"
#include "framework/runtime/arena.h"
#include "framework/runtime/rank_context.h"
#include "models/causal_lm/model.h"
#include "optim/clip_grad_norm.h"
#include "tests/framework/distributed/hand_shards.h"
#include "tests/models/causal_lm/toy_models.h"
#include "tests/testing.h"

namespace moegrad::models::causal_lm_meta_test {
namespace {

using namespace test;

CausalLMConfig mixed_config() {
  auto config = toy_config();
  config.mlp_only_layers = {1};  // one layer of each kind
  return config;
}

CausalLMConfig tied(CausalLMConfig config) {
  config.tie_word_embeddings = true;
  return config;
}

std::unique_ptr<CausalLM> make_meta(const CausalLMConfig& config) {
  const MetaGuard meta;
  return std::make_unique<CausalLM>(config);
}

std::int64_t parameter_bytes(const CausalLM& model) {
  std::int64_t bytes = 0;
  for (const auto& [name, parameter] : model.named_parameters()) {
    bytes += parameter.numel() * size_of(parameter.dtype());
  }
  return bytes;
}

void expect_same_state(const CausalLM& a, const CausalLM& b) {
  const auto x = a.state_dict(), y = b.state_dict();
  ASSERT_EQ(x.size(), y.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(x[i].name, y[i].name);
    EXPECT_TRUE(bitwise_equal(x[i].tensor, y[i].tensor)) << x[i].name;
  }
}

class CausalLMMeta : public ::testing::TestWithParam<CausalLMConfig> {};
INSTANTIATE_TEST_SUITE_P(Configs, CausalLMMeta,
                         ::testing::Values(mixed_config(), tied(mixed_config()),
                                           hugging_face_oriented(mixed_config())));

TEST_P(CausalLMMeta, ToEmptyAndInitWeightsGiveTheOrdinaryModel) {
  const CausalLM ordinary(GetParam(), 5);
  RankContext context;
  const RankContextGuard rank(context);
  const auto model = make_meta(GetParam());
  EXPECT_EQ(context.arena()->peak().total(), 0);
  EXPECT_EQ(parameter_bytes(*model), parameter_bytes(ordinary));
  model->to_empty();
  EXPECT_EQ(context.arena()->live()[MemoryTag::kParameters], parameter_bytes(ordinary));
  EXPECT_EQ(context.arena()->peak().total(), parameter_bytes(ordinary));
  model->init_weights(5);
  EXPECT_EQ(context.arena()->peak().total(), parameter_bytes(ordinary));
  expect_same_state(*model, ordinary);
}

TEST_P(CausalLMMeta, TrainsAsTheOrdinaryModel) {
  CausalLM ordinary(GetParam(), 5);
  const auto model = make_meta(GetParam());
  model->to_empty();
  model->init_weights(5);
  const auto batch = toy_batch(GetParam().vocab_size);
  const auto a = gradients_of(ordinary, batch), b = gradients_of(*model, batch);
  EXPECT_EQ(a.loss.objective.item(), b.loss.objective.item());
  for (std::size_t i = 0; i < a.parameters.size(); ++i) {
    EXPECT_TRUE(bitwise_equal(a.parameters[i].tensor, b.parameters[i].tensor))
        << a.parameters[i].name;
  }
}

TEST_P(CausalLMMeta, LoadsAStateDictAfterToEmpty) {
  const CausalLM ordinary(GetParam(), 5);
  const auto model = make_meta(GetParam());
  model->to_empty();
  model->load_state_dict(ordinary.state_dict());
  expect_same_state(*model, ordinary);
}

TEST(CausalLMMeta, OneOfATrillionParametersTakesNoMemory) {
  CausalLMConfig config;
  config.vocab_size = 150'000;
  config.hidden_size = 7168;
  config.moe_intermediate_size = 2048;
  config.num_hidden_layers = 61;
  config.num_experts = 384;
  RankContext context;
  const RankContextGuard rank(context);
  const auto model = make_meta(config);
  EXPECT_GT(parameter_bytes(*model), std::int64_t{4'000'000'000'000});
  EXPECT_EQ(context.arena()->peak().total(), 0);
}

TEST(CausalLMMeta, UsesBeforeToEmptyNameAParameter) {
  const auto model = make_meta(toy_config());
  const std::string ending =
      "'model.embed_tokens.weight' has no bytes yet: it was made on the meta device; call "
      "to_empty()";
  EXPECT_EQ(message_of<Error>([&] { model->init_weights(5); }),
            "init_weights: parameter " + ending);
  const auto batch = toy_batch(toy_config().vocab_size);
  EXPECT_EQ(message_of<Error>([&] { (*model)(batch.tokens, batch.documents); }),
            "tensor: " + ending + "; in module model.embed_tokens");
}

TEST(CausalLMMeta, InitWeightsFillsShards) {
  const auto config = mixed_config();
  const CausalLM ordinary(config, 5);
  const auto whole = ordinary.named_parameters();
  const auto model = make_meta(config);
  // The middle third of the rows of every parameter, as if sharded over three ranks.
  for (const auto& slot : model->parameter_slots()) {
    const auto shape = slot.tensor->shape();
    const auto begin = shape[0] / 3, end = shape[0] - shape[0] / 3;
    Shape rows = shape;
    rows[0] = end - begin;
    *slot.tensor = Tensor::empty(rows, config.dtype);
    slot.tensor->set_shard_spec(std::make_shared<ShardSpec>(test::range_spec(shape, begin, end)));
  }
  model->init_weights(5);
  const auto shards = model->named_parameters();
  for (std::size_t i = 0; i < whole.size(); ++i) {
    const auto& [name, parameter] = whole[i];
    const auto& shard = shards[i].tensor;
    const auto offset = shard.shard_spec()->box.begin[0] * (parameter.numel() / parameter.dim(0));
    EXPECT_TRUE(bitwise_equal(
        shard, Tensor::as_strided(parameter, shard.shape(), parameter.strides(), offset)))
        << name;
  }
}

// What a rank holds of the gradients is real; all that is counted is the shapes.
TEST(Qwen3MoeLargestPreset, HasNoMoreElementsThanANormTakes) {
  const auto model = make_meta(CausalLMConfig::preset("qwen3-235b-a22b"));
  const auto parameters = model->named_parameters();
  std::int64_t elements = 0;
  for (const auto& [name, parameter] : parameters) {
    elements += parameter.numel();
    if (parameter.ndim() == 1) parameter.set_grad(Tensor::full(parameter.shape(), 2.0));
  }
  EXPECT_EQ(elements, 235'093'634'560);
  const auto& config = model->config();
  // Two norms of each layer and the last one; those of queries and keys.
  const auto own = (2 * config.num_hidden_layers + 1) * config.hidden_size +
                   2 * config.num_hidden_layers * config.head_dim;
  EXPECT_DOUBLE_EQ(optim::clip_grad_norm(parameters, 1e9, 1.0), 2.0 * static_cast<double>(own));
}

/// Counts the tensors of a result by dtype.
class Counts final : public nn::ModuleExtension {
 public:
  TensorList around_forward(nn::ForwardCall& call, const TensorList& inputs) override {
    TensorList tensors = call.run(inputs);
    for (const auto& tensor : tensors) ++outputs[tensor.dtype()];
    return tensors;
  }
  std::map<Dtype, int> outputs;
};

TEST(CausalLMOutput, ShowsAnExtensionAllItsTensors) {
  const auto config = mixed_config();
  CausalLM model(config);
  const auto of_model = std::make_shared<Counts>(), of_mixture = std::make_shared<Counts>(),
             of_dense = std::make_shared<Counts>();
  model.attach(of_model);
  model.layers()[0].attach(of_mixture);
  model.layers()[1].attach(of_dense);
  const auto batch = toy_batch(config.vocab_size);
  model(batch.tokens, batch.documents, {.output_hidden_states = true});
  using Dtypes = std::map<Dtype, int>;
  // Logits, router logits, routing weights, the embeddings and two layers' hidden states.
  EXPECT_EQ(of_model->outputs, (Dtypes{{Dtype::kFloat64, 6}, {Dtype::kInt64, 1}}));
  EXPECT_EQ(of_mixture->outputs, (Dtypes{{Dtype::kFloat64, 3}, {Dtype::kInt64, 1}}));
  EXPECT_EQ(of_dense->outputs, (Dtypes{{Dtype::kFloat64, 1}}));
}

}  // namespace
}  // namespace moegrad::models::causal_lm_meta_test
