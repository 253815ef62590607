// SPDX-License-Identifier: Apache-2.0
// Linear, Embedding, RMSNorm, MLP and Attention: names, shapes, and agreement with plain loops.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "framework/runtime/grad_mode.h"
#include "nn/activations.h"
#include "nn/attention.h"
#include "nn/embedding.h"
#include "nn/init.h"
#include "nn/layer_norm.h"
#include "nn/linear.h"
#include "nn/mlp.h"
#include "nn/rms_norm.h"
#include "ops/copies.h"
#include "ops/elementwise.h"
#include "ops/matmul_reference.h"
#include "ops/views.h"
#include "tests/nn/small_modules.h"
#include "tests/testing.h"

namespace moegrad::nn::layers_test {
namespace {

using namespace test;

Tensor times_transposed(const Tensor& x, const Tensor& weight) {
  return ops::matmul_reference(x, ops::transpose(weight, 0, 1));
}

TEST(Linear, MultipliesByTheTransposedWeight) {
  Linear linear({.in_features = 7, .out_features = 3, .dtype = Dtype::kFloat64});
  init_weights(linear, 1, 1.0);
  EXPECT_EQ(names_of(linear), std::vector<std::string>{"weight"});
  const Tensor x = randn({4, 7});
  EXPECT_TRUE(all_close(linear(x), times_transposed(x, linear.weight()), 1e-12, 1e-12));
}

TEST(Linear, SharesAGivenWeight) {
  Linear linear(variable({3, 7}));
  Linear tied(linear.weight());
  EXPECT_TRUE(tied.weight().is(linear.weight()));
  EXPECT_EQ(message_of<ShapeError>([] { Linear(randn({3})); }),
            "Linear: weight must be [out, in], got [3]");
}

// Ids or doubles are not rounded to what it computes in.
TEST(Linear, InBFloat16TakesFloat32AndBFloat16Alone) {
  Linear linear({.in_features = 3, .out_features = 2});
  linear.compute_in(Dtype::kBFloat16);
  const Tensor x = randn({4, 3}, 1, Dtype::kFloat32);
  EXPECT_TRUE(bitwise_equal(linear(x), linear(to_dtype(x, Dtype::kBFloat16))));
  EXPECT_EQ(linear(x).dtype(), Dtype::kBFloat16);
  for (const auto dtype : {Dtype::kInt64, Dtype::kFloat64}) {
    EXPECT_THROW(linear(to_dtype(x, dtype)), DtypeError) << dtype;
  }
}

TEST(Linear, AddsABiasIfAskedForAndGradientsMatchFiniteDifferences) {
  Linear linear({.in_features = 7, .out_features = 3, .bias = true, .dtype = Dtype::kFloat64});
  init_weights(linear, 1, 1.0);
  EXPECT_EQ(names_of(linear), (std::vector<std::string>{"weight", "bias"}));
  EXPECT_TRUE(bitwise_equal(linear.bias().detach(), Tensor::zeros({3}, Dtype::kFloat64)));
  init_parameter(linear, "bias", InitialValues::normal(1.0), 2);
  const Tensor x = randn({4, 7});
  EXPECT_TRUE(
      all_close(linear(x), times_transposed(x, linear.weight()) + linear.bias(), 1e-12, 1e-12));
  EXPECT_TRUE(gradients_agree([&](const TensorList& in) -> TensorList { return {linear(in[0])}; },
                              {variable({2, 3, 7}), linear.weight(), linear.bias()}));
  EXPECT_FALSE(Linear({.in_features = 7, .out_features = 3}).bias().defined());
}

TEST(Linear, ARowDoesNotDependOnTheNumberOfRows) {
  Linear linear({.in_features = 33, .out_features = 17, .bias = true});
  init_weights(linear, 1, 1.0);
  init_parameter(linear, "bias", InitialValues::normal(1.0), 2);
  const Tensor x = randn({70, 33}, 3, Dtype::kFloat32);
  const Tensor all = linear(x).detach();
  for (const std::int64_t rows : {1, 3, 64}) {
    const Tensor some = linear(clone(Tensor::narrow(x, 0, 5, rows))).detach();
    EXPECT_TRUE(bitwise_equal(some, clone(Tensor::narrow(all, 0, 5, rows)))) << rows;
  }
  EXPECT_EQ(linear(Tensor::zeros({0, 33})).shape(), (Shape{0, 17}));
}

TEST(Linear, AddsTheGradientOfRunsOfRows) {
  const Tensor x = randn({300, 6}, 1, Dtype::kFloat32), grad = randn({300, 4}, 2, Dtype::kFloat32);
  const auto gradient = [&](std::int64_t rows, bool of_config) {
    Linear own({.in_features = 6, .out_features = 4, .gradient_rows = rows});
    Linear shared(own.weight(), {}, rows);
    (of_config ? own : shared)(x).backward(grad);
    return own.weight().grad();
  };
  const Tensor weight = Tensor::zeros({4, 6}).set_requires_grad(true);
  ops::linear(x, weight, 70).backward(grad);
  EXPECT_TRUE(bitwise_equal(gradient(70, true), weight.grad()));
  EXPECT_TRUE(bitwise_equal(gradient(70, false), weight.grad()));
  EXPECT_FALSE(bitwise_equal(gradient(0, true), weight.grad()));
  EXPECT_EQ(message_of<ValueError>([] {
              Linear(randn({3, 7}), {}, -5);
            }),
            "Linear: gradient_rows must not be negative, got -5");
}

TEST(Linear, RejectsABiasThatDoesNotFit) {
  EXPECT_EQ(message_of<ShapeError>([] {
              Linear(randn({3, 7}), randn({7}));
            }),
            "Linear: bias must be [3] to match weight [3, 7], got [7]");
  EXPECT_EQ(message_of<ShapeError>([] {
              Linear(randn({3, 7}), randn({1, 3}));
            }),
            "Linear: bias must be [3] to match weight [3, 7], got [1, 3]");
  EXPECT_EQ(message_of<DtypeError>([] {
              Linear(randn({3, 7}), randn({3}, 1, Dtype::kFloat32));
            }),
            "Linear: weight is float64 but bias is float32");
  Linear linear({.in_features = 7, .out_features = 3, .bias = true});
  auto state = linear.state_dict();
  state[1].tensor = Tensor::zeros({1});
  EXPECT_EQ(message_of<ShapeError>([&] { linear.load_state_dict(state); }),
            "load_state_dict: 'bias' must be [3], got [1]");
}

TEST(Embedding, LooksUpRows) {
  Embedding embedding({.num_embeddings = 5, .embedding_dim = 2, .dtype = Dtype::kFloat64});
  init_weights(embedding, 1, 1.0);
  const Tensor rows = embedding(Tensor::from(std::vector<std::int64_t>{3, 0, 3}, {3}));
  EXPECT_EQ(rows.shape(), (Shape{3, 2}));
  EXPECT_EQ(rows.data<double>()[1], embedding.weight().data<double>()[7]);
}

TEST(Embedding, SharesAGivenWeight) {
  Embedding embedding(variable({3, 7}));
  Embedding same(embedding.weight());
  Linear head(embedding.weight());
  EXPECT_TRUE(same.weight().is(embedding.weight()));
  const Tensor ids = Tensor::from(std::vector<std::int64_t>{2, 0}, {2});
  EXPECT_TRUE(bitwise_equal(same(ids).detach(), embedding(ids).detach()));
  EXPECT_TRUE(head.weight().is(embedding.weight()));
  EXPECT_TRUE(Embedding(randn({3, 7})).weight().requires_grad());
  EXPECT_EQ(message_of<ShapeError>([] { Embedding(randn({3})); }),
            "Embedding: weight must be [V, H], got [3]");
}

TEST(RMSNorm, HasUnitRootMeanSquare) {
  RMSNorm norm({.dim = 8, .eps = 0.0, .dtype = Dtype::kFloat64});
  const Tensor y = norm(randn({2, 8}));
  double squares = 0.0;
  for (const double value : y.data<double>()) squares += value * value;
  EXPECT_NEAR(squares, 16.0, 1e-12);
}

TEST(RMSNorm, FusedMethodsGiveTheBitsOfTheModule) {
  RMSNorm norm({.dim = 6, .eps = 0.5, .dtype = Dtype::kFloat64});
  {
    const NoGradGuard no_grad;
    fill_(norm.named_parameters()[0].tensor, 3.0);
  }
  const Tensor x = randn({4, 2, 6}, 1), residual = randn({4, 2, 6}, 2);
  const auto added = norm.call_method(&RMSNorm::add, x, residual);
  EXPECT_TRUE(bitwise_equal(added.sum, x + residual));
  EXPECT_TRUE(bitwise_equal(added.normed, norm(x + residual)));
  const ops::RopeTable table{.cos = randn({4, 3}, 3), .sin = randn({4, 3}, 4)};
  EXPECT_TRUE(bitwise_equal(norm.call_method(&RMSNorm::rope, x, table.cos, table.sin),
                            ops::rope(norm(x), table)));
}

/// Makes float64 of what comes in and float32 of what goes out.
class Widening final : public ModuleExtension {
 public:
  TensorList around_forward(ForwardCall& call, const TensorList& inputs) override {
    return cast(call.run(cast(inputs, Dtype::kFloat64)), Dtype::kFloat32);
  }

 private:
  static TensorList cast(TensorList tensors, Dtype dtype) {
    for (auto& tensor : tensors) tensor = ops::cast(tensor, dtype);
    return tensors;
  }
};

TEST(RMSNorm, AnExtensionCastsAllTensorsOfTheFusedMethods) {
  RMSNorm norm({.dim = 6, .dtype = Dtype::kFloat64});
  norm.attach(std::make_shared<Widening>());
  const auto draw = [](const Shape& shape) { return randn(shape, 1, Dtype::kFloat32); };
  const auto added = norm.call_method(&RMSNorm::add, draw({4, 6}), draw({4, 6}));
  EXPECT_EQ(added.sum.dtype(), Dtype::kFloat32);
  EXPECT_EQ(added.normed.dtype(), Dtype::kFloat32);
  const Tensor y = norm.call_method(&RMSNorm::rope, draw({4, 2, 6}), draw({4, 3}), draw({4, 3}));
  EXPECT_EQ(y.dtype(), Dtype::kFloat32);
}

TEST(MLP, IsAGatedProduct) {
  MLP mlp({.hidden_size = 6, .intermediate_size = 9, .dtype = Dtype::kFloat64});
  init_weights(mlp, 1, 0.5);
  EXPECT_EQ(names_of(mlp),
            (std::vector<std::string>{"gate_proj.weight", "up_proj.weight", "down_proj.weight"}));
  const auto w = mlp.named_parameters();
  const Tensor x = randn({4, 6});
  const Tensor hidden =
      ops::silu(times_transposed(x, w[0].tensor)) * times_transposed(x, w[1].tensor);
  EXPECT_TRUE(all_close(mlp(x), times_transposed(hidden, w[2].tensor), 1e-12, 1e-12));
}

Attention::Config attention_config() {
  return {.hidden_size = 10,
          .num_heads = 4,
          .num_key_value_heads = 2,
          .head_dim = 6,
          .dtype = Dtype::kFloat64};
}

SequenceContext context_of(const std::vector<std::int64_t>& lengths) {
  const auto documents = Documents::of_lengths(lengths);
  return {.documents = documents,
          .rope = ops::rope_table(documents.positions(), 6, 1e4, Dtype::kFloat64)};
}

TEST(Attention, HasQwen3sParameters) {
  const Attention attention(attention_config());
  const auto parameters = attention.named_parameters();
  EXPECT_EQ(names_of(attention),
            (std::vector<std::string>{"q_proj.weight", "k_proj.weight", "v_proj.weight",
                                      "o_proj.weight", "q_norm.weight", "k_norm.weight"}));
  const std::vector<Shape> shapes = {{24, 10}, {12, 10}, {12, 10}, {10, 24}, {6}, {6}};
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    EXPECT_EQ(parameters[i].tensor.shape(), shapes[i]);
  }
}

TEST(Attention, NeedsAMatrixOfTokens) {
  Attention attention(attention_config());
  EXPECT_EQ(message_of<ShapeError>([&] {
              attention(randn({1, 1, 10}), context_of({1}));
            }),
            "Attention: x must be [tokens, 10], got [1, 1, 10]");
}

TEST(Attention, OfOneTokenIsItsValue) {
  Attention attention(attention_config());
  init_weights(attention, 1, 0.5);
  const auto w = attention.named_parameters();
  const Tensor x = randn({1, 10});
  // Query heads 0, 1 read value head 0, and 2, 3 value head 1.
  const Tensor v = ops::reshape(times_transposed(x, w[2].tensor), {2, 1, 6});
  const Tensor repeated = ops::reshape(ops::expand(v, {2, 2, 6}), {1, 24});
  EXPECT_TRUE(all_close(attention(x, context_of({1})), times_transposed(repeated, w[3].tensor),
                        1e-12, 1e-12));
}

// As Qwen2: on q, k and v, not on o.
TEST(Attention, HasBiasesIfAskedForAndGradientsMatchFiniteDifferences) {
  auto config = attention_config();
  config.qkv_bias = true;
  Attention attention(config);
  EXPECT_EQ(names_of(attention),
            (std::vector<std::string>{"q_proj.weight", "q_proj.bias", "k_proj.weight",
                                      "k_proj.bias", "v_proj.weight", "v_proj.bias",
                                      "o_proj.weight", "q_norm.weight", "k_norm.weight"}));
  init_weights(attention, 1, 0.5);
  Attention plain(attention_config());
  init_weights(plain, 1, 0.5);
  const Tensor x = randn({5, 10});
  EXPECT_TRUE(bitwise_equal(attention(x, context_of({2, 3})).detach(),
                            plain(x, context_of({2, 3})).detach()));  // biases of zero
  TensorList inputs = {variable({5, 10})};
  for (const auto& [name, parameter] : attention.named_parameters()) {
    if (name.ends_with("bias")) init_parameter(attention, name, InitialValues::normal(0.5), 2);
    inputs.push_back(parameter);
  }
  EXPECT_FALSE(bitwise_equal(attention(x, context_of({2, 3})).detach(),
                             plain(x, context_of({2, 3})).detach()));
  // Attention of one token is its value, which has a bias.
  const Tensor one = randn({1, 10});
  const Tensor v = ops::reshape(times_transposed(one, inputs[5]) + inputs[6], {2, 1, 6});
  const Tensor repeated = ops::reshape(ops::expand(v, {2, 2, 6}), {1, 24});
  EXPECT_TRUE(all_close(attention(one, context_of({1})), times_transposed(repeated, inputs[7]),
                        1e-12, 1e-12));
  EXPECT_TRUE(gradients_agree(
      [&](const TensorList& in) -> TensorList {
        return {attention(in[0], context_of({2, 3}))};
      },
      inputs));
}

Tensor with_other_token(const Tensor& x, std::int64_t token) {
  Tensor changed = clone(x);
  Tensor row = changed[token];
  for (auto& value : row.mutable_data<double>()) value += 1.0;
  return changed;
}

TEST(Attention, SeesNothingOfLaterTokensOrOtherDocuments) {
  Attention attention(attention_config());
  init_weights(attention, 1, 0.5);
  const Tensor x = randn({7, 10});
  const Tensor y = attention(x, context_of({3, 4}));
  const Tensor z = attention(with_other_token(x, 5), context_of({3, 4}));
  EXPECT_TRUE(bitwise_equal(ops::narrow(y, 0, 0, 5), ops::narrow(z, 0, 0, 5)));
  EXPECT_FALSE(bitwise_equal(ops::narrow(y, 0, 5, 1), ops::narrow(z, 0, 5, 1)));
  EXPECT_FALSE(bitwise_equal(ops::narrow(y, 0, 6, 1), ops::narrow(z, 0, 6, 1)));
  EXPECT_TRUE(bitwise_equal(ops::narrow(y, 0, 3, 4),
                            attention(clone(ops::narrow(x, 0, 3, 4)), context_of({4}))));
}

TEST(Attention, SeesLaterTokensOfItsDocumentIfItIsNotCausal) {
  auto config = attention_config();
  config.causal = false;
  Attention attention(config);
  init_weights(attention, 1, 0.5);
  const Tensor x = randn({7, 10});
  const Tensor y = attention(x, context_of({3, 4}));
  const Tensor z = attention(with_other_token(x, 5), context_of({3, 4}));
  EXPECT_TRUE(bitwise_equal(ops::narrow(y, 0, 0, 3), ops::narrow(z, 0, 0, 3)));
  for (std::int64_t t = 3; t < 7; ++t) {
    EXPECT_FALSE(bitwise_equal(ops::narrow(y, 0, t, 1), ops::narrow(z, 0, t, 1))) << t;
  }
  // The last token of a document sees what it would see if attention were causal.
  Attention causal(attention_config());
  init_weights(causal, 1, 0.5);
  const Tensor want = causal(x, context_of({3, 4}));
  for (const std::int64_t t : {2, 6}) {
    EXPECT_TRUE(all_close(ops::narrow(y, 0, t, 1), ops::narrow(want, 0, t, 1), 1e-12, 1e-12)) << t;
  }
  EXPECT_FALSE(all_close(ops::narrow(y, 0, 3, 1), ops::narrow(want, 0, 3, 1), 1e-3, 1e-3));
}

TEST(Attention, GradientsMatchFiniteDifferences) {
  Attention attention(attention_config());
  init_weights(attention, 1, 0.5);
  TensorList inputs = {variable({5, 10})};
  for (const auto& item : attention.named_parameters()) inputs.push_back(item.tensor);
  EXPECT_TRUE(gradients_agree(
      [&](const TensorList& in) -> TensorList {
        return {attention(in[0], context_of({2, 3}))};
      },
      inputs));
}

TEST(Attention, RejectsHeadsThatDoNotGroup) {
  auto config = attention_config();
  config.num_key_value_heads = 3;
  EXPECT_EQ(message_of<ValueError>([&] { Attention{config}; }),
            "Attention: num_heads must be a multiple of num_key_value_heads (3), got 4");
}

TEST(LayerNorm, HasWeightAndBiasAndIsTheOp) {
  LayerNorm norm({.dim = 5, .eps = 1e-3, .dtype = Dtype::kFloat64});
  EXPECT_EQ(names_of(norm), (std::vector<std::string>{"weight", "bias"}));
  const Tensor x = randn({3, 5});
  EXPECT_TRUE(bitwise_equal(norm(x), ops::layer_norm(x, {}, {}, 1e-3)));
  init_parameter(norm, "weight", InitialValues::normal(1.0), 1);
  init_parameter(norm, "bias", InitialValues::normal(1.0), 2);
  const auto parameters = norm.named_parameters();
  EXPECT_TRUE(
      bitwise_equal(norm(x), ops::layer_norm(x, parameters[0].tensor, parameters[1].tensor, 1e-3)));
  init_weights(norm, 1, 0.5);
  EXPECT_TRUE(bitwise_equal(norm(x), ops::layer_norm(x, {}, {}, 1e-3)));
  EXPECT_EQ(names_of(*std::make_unique<LayerNorm>(LayerNorm::Config{.dim = 5, .bias = false})),
            std::vector<std::string>{"weight"});
}

TEST(Mlp, TakesAnyActivationGatedOrNot) {
  MLP gated({.hidden_size = 3,
             .intermediate_size = 4,
             .activation = ops::gelu,
             .bias = true,
             .dtype = Dtype::kFloat64});
  MLP plain({.hidden_size = 3,
             .intermediate_size = 4,
             .activation = [](const Tensor& x) { return ops::square(ops::relu(x)); },
             .gated = false,
             .dtype = Dtype::kFloat64});
  EXPECT_EQ(names_of(gated),
            (std::vector<std::string>{"gate_proj.weight", "gate_proj.bias", "up_proj.weight",
                                      "up_proj.bias", "down_proj.weight", "down_proj.bias"}));
  EXPECT_EQ(names_of(plain), (std::vector<std::string>{"up_proj.weight", "down_proj.weight"}));
  init_weights(gated, 1, 0.5);
  init_weights(plain, 1, 0.5);
  const Tensor x = randn({2, 3});
  const auto of = [](MLP& mlp, std::size_t i) { return mlp.named_parameters()[i].tensor; };
  EXPECT_TRUE(all_close(gated(x),
                        times_transposed(ops::gelu(times_transposed(x, of(gated, 0))) *
                                             times_transposed(x, of(gated, 2)),
                                         of(gated, 4)),
                        1e-12, 1e-12));
  EXPECT_TRUE(all_close(
      plain(x),
      times_transposed(ops::square(ops::relu(times_transposed(x, of(plain, 0)))), of(plain, 1)),
      1e-12, 1e-12));
  EXPECT_EQ(message_of<ValueError>(
                [] { MLP({.hidden_size = 2, .intermediate_size = 2, .activation = nullptr}); }),
            "MLP: activation must be a function, got none");
}

TEST(Activations, AreTheOps) {
  const Tensor x = randn({3, 4});
  EXPECT_TRUE(bitwise_equal(ReLU()(x), ops::relu(x)));
  EXPECT_TRUE(bitwise_equal(SiLU()(x), ops::silu(x)));
  EXPECT_TRUE(bitwise_equal(Tanh()(x), ops::tanh(x)));
  EXPECT_TRUE(bitwise_equal(GELU()(x), ops::gelu(x)));
  EXPECT_TRUE(bitwise_equal(GELU(GELU::Approximate::kTanh)(x), ops::gelu_tanh(x)));
}

TEST(Attention, RotatesOnlyTheChannelsOfTheTable) {
  Attention attention({.hidden_size = 6,
                       .num_heads = 2,
                       .num_key_value_heads = 1,
                       .head_dim = 5,
                       .dtype = Dtype::kFloat64});
  init_weights(attention, 1, 0.5);
  const Tensor x = randn({4, 6});
  const auto with_table = [&](std::int64_t rotated, double angle) {
    return attention(
        x, {.documents = Documents::one(4),
            .rope = {.cos = Tensor::full({4, rotated / 2}, std::cos(angle), Dtype::kFloat64),
                     .sin = Tensor::full({4, rotated / 2}, std::sin(angle), Dtype::kFloat64)}});
  };
  const Tensor unrotated = with_table(2, 0);
  // Queries and keys that are rotated by one angle have the same products as before.
  EXPECT_TRUE(all_close(with_table(2, 1.3), unrotated, 1e-12, 1e-12));
  EXPECT_TRUE(all_close(with_table(4, -0.7), unrotated, 1e-12, 1e-12));
  const auto positions = Documents::one(4).positions();
  EXPECT_FALSE(all_close(attention(x, {.documents = Documents::one(4),
                                       .rope = ops::rope_table(positions, 2, 10, Dtype::kFloat64)}),
                         unrotated, 1e-3, 1e-3));
}

TEST(Layers, NoSizeIsLeftOut) {
  EXPECT_EQ(message_of<ValueError>([] { Linear({.in_features = 3}); }),
            "Linear: out_features must be in [1, 2^31), got 0");
  EXPECT_EQ(message_of<ValueError>([] { Linear({.out_features = 3}); }),
            "Linear: in_features must be in [1, 2^31), got 0");
  EXPECT_EQ(message_of<ValueError>([] { Embedding({.num_embeddings = 2}); }),
            "Embedding: embedding_dim must be in [1, 2^31), got 0");
  EXPECT_EQ(message_of<ValueError>([] { Embedding({.embedding_dim = 2}); }),
            "Embedding: num_embeddings must be in [1, 2^31), got 0");
  EXPECT_EQ(message_of<ValueError>([] { LayerNorm(LayerNorm::Config{}); }),
            "LayerNorm: dim must be in [1, 2^31), got 0");
  EXPECT_EQ(message_of<ValueError>([] { RMSNorm({.dim = -1}); }),
            "RMSNorm: dim must be in [1, 2^31), got -1");
}

TEST(Layers, NoProductOfSizesOverflows) {
  EXPECT_EQ(message_of<ValueError>([] {
              Attention({.hidden_size = 4,
                         .num_heads = std::int64_t{1} << 62,
                         .num_key_value_heads = 1,
                         .head_dim = 4});
            }),
            "Attention: num_heads must be in [1, 2^31), got 4611686018427387904");
}

}  // namespace
}  // namespace moegrad::nn::layers_test
