// SPDX-License-Identifier: Apache-2.0
// A model whose layers have parts of the user's own, and one in another dtype.
#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <vector>

#include "models/causal_lm/loss.h"
#include "models/causal_lm/model.h"
#include "nn/mlp.h"
#include "ops/elementwise.h"
#include "tests/models/causal_lm/toy_models.h"
#include "tests/testing.h"

namespace moegrad::models::causal_lm_replace_test {
namespace {

using namespace test;

/// y = w * x
class Scaled final : public nn::Callable<Scaled> {
 public:
  Scaled() { register_parameter("weight", weight_, nn::InitialValues::ones()); }
  Tensor forward(const Tensor& x) { return x * weight_; }

 private:
  Tensor weight_ = Tensor::zeros({20}, Dtype::kFloat64);
};

class NoAttention final : public nn::Callable<NoAttention> {
 public:
  Tensor forward(const Tensor& x, const nn::SequenceContext& /*context*/) { return x * 0.0; }
};

TEST(CausalLMReplace, AMixtureMayBecomeAnyModuleFromTensorToTensor) {
  const auto config = toy_config();
  CausalLM model(config, 3);
  model.replace("model.layers.1.mlp", nn::TensorModule(std::make_shared<Scaled>()));
  model.init_weights(3);
  EXPECT_TRUE(model.layers()[0].is_moe());
  EXPECT_FALSE(model.layers()[1].is_moe());
  std::vector<std::string> names;
  for (const auto& [name, parameter] : model.named_parameters()) {
    if (name.starts_with("model.layers.1.mlp")) names.push_back(name);
  }
  EXPECT_THAT(names, ::testing::ElementsAre("model.layers.1.mlp.weight"));
  const auto batch = toy_batch(config.vocab_size);
  const auto output = model(batch.tokens, batch.documents, {.output_hidden_states = true});
  EXPECT_EQ(output.expert_indices.size(), 1U);
  EXPECT_THAT(message_of<Error>([&] { model.layers()[1].dispatch({}); }),
              ::testing::HasSubstr("nodes need a mixture layer, got a dense one"));
  model.zero_grad();
  output.logits.backward(test::randn(output.logits.shape(), 5));
  for (const auto& [name, parameter] : model.named_parameters()) {
    EXPECT_TRUE(parameter.grad().defined()) << name;
  }
}

TEST(CausalLMReplace, ADenseLayerTakesAnotherMlpAndAnyTakesAnotherAttention) {
  auto config = toy_config();
  config.mlp_only_layers = {0};
  CausalLM model(config, 3), other(config, 3);
  const nn::TensorModule twin =
      std::make_shared<nn::MLP>(nn::MLP::Config{.hidden_size = config.hidden_size,
                                                .intermediate_size = config.intermediate_size,
                                                .dtype = config.dtype});
  other.replace("model.layers.0.mlp", twin);
  other.init_weights(3);
  const auto batch = toy_batch(config.vocab_size);
  const auto logits = [&](CausalLM& of) {
    return of(batch.tokens, batch.documents).logits.detach();
  };
  EXPECT_TRUE(bitwise_equal(logits(model), logits(other)));
  const nn::AnyModule<Tensor(const Tensor&, const nn::SequenceContext&)> none =
      std::make_shared<NoAttention>();
  other.replace("model.layers.0.self_attn", none);
  EXPECT_FALSE(bitwise_equal(logits(model), logits(other)));
  EXPECT_EQ(message_of<ValueError>([&] { other.replace("model.layers.1.input_layernorm", twin); }),
            "replace: 'model.layers.1.input_layernorm' must be registered as replaceable, got a "
            "fixed member of its module");
  EXPECT_EQ(message_of<ValueError>([&] { other.replace("model.layers.2.mlp", twin); }),
            "replace: the module must have a module 'model.layers.2.mlp', got none");
}

// float32 values, so that both dtypes begin with the same numbers.
TEST(CausalLMReplace, AConvertedModelComputesInItsNewDtype) {
  auto narrow = toy_config();
  narrow.dtype = Dtype::kFloat32;
  CausalLM model(narrow, 3), wide(toy_config(), 3);
  model.to(Dtype::kFloat64);
  EXPECT_EQ(model.config().dtype, Dtype::kFloat64);
  wide.load_state_dict(model.state_dict());
  const auto batch = toy_batch(narrow.vocab_size);
  EXPECT_TRUE(bitwise_equal(model(batch.tokens, batch.documents).logits.detach(),
                            wide(batch.tokens, batch.documents).logits.detach()));
}

}  // namespace
}  // namespace moegrad::models::causal_lm_replace_test
