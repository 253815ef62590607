// SPDX-License-Identifier: Apache-2.0
#include "nn/dropout.h"

#include <cmath>
#include <vector>

#include "nn/recompute.h"
#include "nn/sequential.h"
#include "tests/nn/dropping_block.h"

namespace moegrad::nn::dropout_test {
namespace {

using namespace test;

TEST(Dropout, IsTheSameHoweverTokensAreDividedAndOnceMoreInRecomputation) {
  const auto want = run_whole();
  for (const bool recomputed : {false, true}) {
    for (const std::int64_t size : {2, 4, 8}) {
      DroppingBlock block;
      if (recomputed) recompute(block);
      for (std::int64_t begin = 0; begin < kTokens; begin += size) {
        const auto part = run_dropping(block, begin, begin + size);
        EXPECT_TRUE(bitwise_equal(part.y, rows_of(want.y, begin, begin + size)));
        EXPECT_TRUE(bitwise_equal(part.grad, rows_of(want.grad, begin, begin + size)));
      }
    }
  }
}

TEST(Dropout, DiffersByStepMicroBatchAndModule) {
  DroppingBlock block;
  const auto first = run_dropping(block, 0, kTokens);
  EXPECT_FALSE(bitwise_equal(run_dropping(block, 0, kTokens, 4).y, first.y));
  EXPECT_TRUE(bitwise_equal(run_dropping(block, 0, kTokens).y, first.y));
  Sequential layers;
  layers.emplace_back<Dropout>({.p = 0.5});
  layers.emplace_back<Dropout>({.p = 0.5});
  const auto kept = [&](Module& module, const DropoutIds& ids) {
    const DropoutIdsGuard guard(ids);
    const Tensor ones = Tensor::ones({2, 64});
    auto& dropout = dynamic_cast<Dropout&>(module);
    return dropout(ones);
  };
  const Tensor one = kept(layers[0], {.seed = 1, .step = 0});
  EXPECT_TRUE(bitwise_equal(one, kept(layers[0], {.seed = 1, .step = 0})));
  EXPECT_FALSE(bitwise_equal(one, kept(layers[1], {.seed = 1, .step = 0})));
  EXPECT_FALSE(bitwise_equal(one, kept(layers[0], {.seed = 2, .step = 0})));
  EXPECT_FALSE(bitwise_equal(one, kept(layers[0], {.seed = 1, .step = 1})));
  // Another micro-batch of the step has other ids, and tokens with equal ids lose the same.
  EXPECT_FALSE(bitwise_equal(
      one, kept(layers[0], {.seed = 1, .step = 0, .token_ids = Tensor::arange(2, 4)})));
  const Tensor shifted = kept(layers[0], {.seed = 1, .step = 0, .token_ids = Tensor::arange(1, 3)});
  EXPECT_TRUE(bitwise_equal(clone(shifted[0]), clone(one[1])));
}

TEST(Dropout, KeepsItsShareWithinThreeSigma) {
  for (const double p : {0.1, 0.5, 0.9}) {
    Dropout dropout({.p = p});
    const DropoutIdsGuard guard({.seed = 9, .step = 0});
    constexpr std::int64_t kElements = 40'000;
    const Tensor y = dropout(Tensor::ones({kElements / 100, 100}, Dtype::kFloat64));
    double kept = 0;
    for (const auto value : y.data<double>()) {
      kept += value != 0 ? 1 : 0;
      EXPECT_TRUE(value == 0 || value == 1 / (1 - p));
    }
    EXPECT_NEAR(kept / kElements, 1 - p, 3 * std::sqrt(p * (1 - p) / kElements)) << p;
  }
}

TEST(Dropout, DropsNothingInEvaluation) {
  DroppingBlock block;
  const Tensor x = randn({kTokens, kHidden}, 1);
  block.eval();
  const Tensor y = block(x, context_of(kTokens));  // needs no guard
  EXPECT_TRUE(bitwise_equal(y, block(x, context_of(kTokens))));
  Dropout dropout({.p = 0.5});
  dropout.eval();
  EXPECT_TRUE(dropout(x).is(x));
  dropout.train();
  const DropoutIdsGuard guard({.seed = 1, .step = 0});
  EXPECT_FALSE(bitwise_equal(dropout(x), x));
}

TEST(Dropout, GradientsMatchFiniteDifferencesOfWhatItKeeps) {
  Dropout dropout({.p = 0.5});
  const DropoutIdsGuard guard({.seed = 1, .step = 0});
  EXPECT_TRUE(gradients_agree([&](const TensorList& in) { return TensorList{dropout(in[0])}; },
                              {test::variable({4, 5})}));
}

TEST(Dropout, NeedsIdsInTrainingAndAProbability) {
  Dropout dropout({.p = 0.5});
  const Tensor x = randn({3, 2});
  EXPECT_EQ(
      message_of<Error>([&] { dropout(x); }),
      "Dropout: training needs a DropoutIdsGuard with the seed, the step and the tokens' ids, "
      "or call eval()");
  EXPECT_NO_THROW(Dropout({.p = 0})(x));
  {
    const DropoutIdsGuard guard({.step = 0, .token_ids = Tensor::arange(2)});
    EXPECT_EQ(message_of<ShapeError>([&] { dropout(x); }), "dropout: ids must be [3], got [2]");
  }
  EXPECT_EQ(DropoutIdsGuard::current(), nullptr);
  EXPECT_EQ(message_of<ValueError>([] { Dropout({.p = 1}); }),
            "Dropout: p must be in [0, 1), got 1");
  EXPECT_EQ(message_of<ValueError>([] { Dropout({.p = -0.5}); }),
            "Dropout: p must be in [0, 1), got -0.5");
  EXPECT_EQ(message_of<ValueError>([] {
              Attention({.hidden_size = 4,
                         .num_heads = 1,
                         .num_key_value_heads = 1,
                         .head_dim = 4,
                         .dropout = 1.5});
            }),
            "Attention: dropout must be in [0, 1), got 1.5");
}

class Careless final : public Callable<Careless> {
 public:
  explicit Careless(bool registers) {
    if (registers) register_module("drop", drop_);
  }
  Tensor forward(const Tensor& x) { return drop_(x); }

 private:
  Dropout drop_{{.p = 0.5}};
};

TEST(Dropout, MustBeRegisteredWithTheModuleThatCallsIt) {
  const DropoutIdsGuard guard({.step = 0, .token_ids = Tensor::arange(3)});
  const Tensor x = Tensor::ones({3, 2});
  Careless careless(false), careful(true);
  EXPECT_EQ(message_of<Error>([&] { careless(x); }),
            "Dropout: masks depend on the module's path, so it must be registered with the module "
            "that calls it (register_module)");
  EXPECT_EQ(careful(x).shape(), x.shape());
  Sequential both;
  both.emplace_back<Careless>(true);
  EXPECT_EQ(both(x).shape(), x.shape());
}

}  // namespace
}  // namespace moegrad::nn::dropout_test
