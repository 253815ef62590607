// SPDX-License-Identifier: Apache-2.0
#include "nn/init.h"

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "framework/runtime/rank_context.h"
#include "framework/tensor/fill.h"
#include "framework/tensor/meta.h"
#include "nn/experts.h"
#include "nn/linear.h"
#include "nn/rms_norm.h"
#include "nn/sequential.h"
#include "ops/reduce.h"
#include "optim/sgd.h"
#include "tests/framework/distributed/hand_shards.h"
#include "tests/testing.h"

namespace moegrad::nn::init_test {
namespace {

using test::bitwise_equal;

GroupedExperts::Config experts_config(ExpertWeights weights) {
  return {.hidden_size = 5, .intermediate_size = 3, .num_experts = 4, .weights = weights};
}

// A text and the code that it shows.
#define ADVICE nn::init_weights(model, seed, 0.02)
#define TEXT_OF(code) #code
#define TEXT_OF_ADVICE(code) TEXT_OF(code)

TEST(InitWeights, IsCalledAsTheWarningOfZeroWeightsSays) {
  Sequential model;
  for (int i = 0; i < 2; ++i) model.emplace_back<Linear>({.in_features = 2, .out_features = 2});
  const auto warning = [&] {
    optim::SGD optimizer(model.named_parameters(), {.lr = 0.1});
    ops::sum(model(Tensor::ones({1, 2}))).backward();
    ::testing::internal::CaptureStderr();
    optimizer.step();
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_NE(warning().find("fill them before, as " TEXT_OF_ADVICE(ADVICE) " does\n"),
            std::string::npos);
  const std::uint64_t seed = 1;
  ADVICE;
  EXPECT_EQ(warning(), "");
}

TEST(InitWeights, BothExpertOrientationsHoldTheSameNumbers) {
  GroupedExperts stored_in_first(experts_config(ExpertWeights::kPretransposed));
  GroupedExperts stored_out_first(experts_config(ExpertWeights::kHuggingFace));
  init_weights(stored_in_first, 3, 0.02);
  init_weights(stored_out_first, 3, 0.02);
  const auto a = stored_in_first.named_parameters(), b = stored_out_first.named_parameters();
  for (std::size_t p = 0; p < 2; ++p) {
    const auto in = a[p].tensor.dim(0) / 4, out = a[p].tensor.dim(1);
    ASSERT_EQ(b[p].tensor.shape(), (Shape{4 * out, in}));
    const auto x = a[p].tensor.data<float>(), y = b[p].tensor.data<float>();
    for (std::int64_t e = 0; e < 4; ++e) {
      for (std::int64_t i = 0; i < in; ++i) {
        for (std::int64_t o = 0; o < out; ++o) {
          EXPECT_EQ(x[static_cast<std::size_t>((e * in + i) * out + o)],
                    y[static_cast<std::size_t>((e * out + o) * in + i)]);
        }
      }
    }
  }
}

TEST(InitWeights, AShardGetsItsPartOfTheWhole) {
  const ParameterLayout layout = {.stacked = {4, 5, 6}, .in_first = true};
  const Tensor whole = Tensor::zeros({20, 6});
  Tensor filled = clone(whole);
  init_normal({.name = "w", .tensor = &filled, .layout = layout}, 7, 1.0);
  const std::vector<std::pair<std::int64_t, std::int64_t>> rows = {
      {0, 7}, {7, 13}, {13, 20}, {20, 20}};
  const std::vector<std::pair<std::int64_t, std::int64_t>> columns = {{0, 2}, {2, 4}, {4, 6}};
  for (const std::int64_t dim : {0, 1}) {
    for (const auto& [begin, end] : dim == 0 ? rows : columns) {
      const auto spec = test::range_spec({20, 6}, begin, end, nullptr, dim);
      Tensor shard = test::shard_of(whole, spec);
      init_normal({.name = "w", .tensor = &shard, .layout = layout}, 7, 1.0);
      EXPECT_TRUE(bitwise_equal(shard, test::shard_of(filled, spec))) << dim << ' ' << begin;
    }
  }
}

TEST(InitWeights, DependsOnNameAndSeedButNotOnThreads) {
  const auto draw = [](const std::string& name, std::uint64_t seed, int threads) {
    RankContext context({.threads = threads});
    const RankContextGuard guard(context);
    Tensor values = Tensor::zeros({100, 100});
    init_normal({.name = name, .tensor = &values, .layout = {}}, seed, 1.0);
    return values;
  };
  EXPECT_TRUE(bitwise_equal(draw("a", 1, 1), draw("a", 1, 3)));
  EXPECT_FALSE(bitwise_equal(draw("a", 1, 1), draw("b", 1, 1)));
  EXPECT_FALSE(bitwise_equal(draw("a", 1, 1), draw("a", 2, 1)));
}

/// A scale, a bias, a matrix and a scalar, each with 7 in every element at first.
class Declares final : public Callable<Declares> {
 public:
  explicit Declares(bool declared) {
    const auto init = [&](InitialValues initial) { return declared ? initial : InitialValues(); };
    register_parameter("scale", scale, init(InitialValues::ones()));
    register_parameter("bias", bias, init(InitialValues::zeros()));
    register_parameter("weight", weight, init(InitialValues::normal(3.0)));
    register_parameter("temperature", temperature);
  }
  Tensor forward(const Tensor& x) { return x; }
  Tensor scale = Tensor::full({4}, 7.0), bias = Tensor::full({4}, 7.0),
         weight = Tensor::full({4, 5}, 7.0), temperature = Tensor::full({}, 7.0);
};

TEST(InitWeights, TheLayerSaysWhatAParameterStartsWith) {
  Declares module(true);
  init_weights(module, 5, 0.02);
  EXPECT_TRUE(bitwise_equal(module.scale.detach(), Tensor::ones({4})));
  EXPECT_TRUE(bitwise_equal(module.bias.detach(), Tensor::zeros({4})));
  Tensor drawn = Tensor::zeros({4, 5});
  init_normal({.name = "weight", .tensor = &drawn, .layout = {}}, 5, 3.0);
  EXPECT_TRUE(bitwise_equal(module.weight.detach(), drawn));
}

TEST(InitWeights, WithoutADeclarationMatricesAreDrawnAndVectorsKeepTheirValues) {
  Declares module(false);
  init_weights(module, 5, 0.02);
  EXPECT_TRUE(bitwise_equal(module.scale.detach(), Tensor::full({4}, 7.0)));
  EXPECT_TRUE(bitwise_equal(module.bias.detach(), Tensor::full({4}, 7.0)));
  EXPECT_EQ(module.temperature.item(), 7.0);
  Tensor drawn = Tensor::zeros({4, 5});
  init_normal({.name = "weight", .tensor = &drawn, .layout = {}}, 5, 0.02);
  EXPECT_TRUE(bitwise_equal(module.weight.detach(), drawn));
}

TEST(InitWeights, OnTheMetaDeviceVectorsMustBeDeclared) {
  const auto made = [](bool declared) {
    const MetaGuard meta;
    return std::make_unique<Declares>(declared);
  };
  const auto undeclared = made(false);
  undeclared->to_empty();
  Tensor scale = undeclared->weight.detach();
  fill_(scale, 7.0);
  EXPECT_EQ(test::message_of<Error>([&] { init_weights(*undeclared, 5, 0.02); }),
            "init_weights: parameter 'scale' [4] was made on the meta device, where a constructor "
            "gives no values; declare them where it is registered, as in register_parameter(name, "
            "tensor, InitialValues::zeros())");
  // Nothing was written.
  EXPECT_TRUE(bitwise_equal(undeclared->weight.detach(), Tensor::full({4, 5}, 7.0)));
}

TEST(InitWeights, DrawsMatricesAndSetsWeightsOfNormsToOne) {
  Linear linear({.in_features = 300, .out_features = 200, .dtype = Dtype::kFloat64});
  init_weights(linear, 1, 0.02);
  double sum = 0.0, squares = 0.0;
  for (const double value : linear.weight().data<double>()) {
    sum += value;
    squares += value * value;
  }
  EXPECT_NEAR(sum / 60'000, 0.0, 5 * 0.02 / std::sqrt(60'000));
  EXPECT_NEAR(std::sqrt(squares / 60'000), 0.02, 0.0005);

  RMSNorm norm({.dim = 4});
  Tensor weight = norm.parameter_slots()[0].tensor->detach();
  fill_(weight, 7.0);
  init_weights(norm, 1, 0.02);
  EXPECT_TRUE(bitwise_equal(weight.detach(), Tensor::ones({4})));
}

}  // namespace
}  // namespace moegrad::nn::init_test
