// SPDX-License-Identifier: Apache-2.0
#include "ops/linear_cross_entropy.h"

#include <functional>
#include <optional>

#include "framework/autograd/checkpoint.h"
#include "framework/autograd/function.h"
#include "framework/runtime/grad_mode.h"
#include "framework/runtime/rank_context.h"
#include "ops/copies.h"
#include "ops/elementwise.h"
#include "ops/linear.h"
#include "ops/losses.h"
#include "ops/masks.h"
#include "ops/nz.h"
#include "ops/reduce.h"
#include "ops/statistics.h"
#include "tests/testing.h"

namespace moegrad::ops::linear_cross_entropy_test {
namespace {

using namespace test;

struct Inputs {
  Inputs(std::int64_t tokens, std::int64_t hidden, std::int64_t vocabulary, Dtype dtype)
      : x(to_dtype(randn({tokens, hidden}, 1), dtype).set_requires_grad(true)),
        weight(to_dtype(randn({vocabulary, hidden}, 2), dtype).set_requires_grad(true)),
        targets(Tensor::empty({tokens}, Dtype::kInt64)),
        token_weights(randn({tokens}, 3, arithmetic_dtype(dtype))) {
    std::int64_t t = 0;
    for (auto& target : targets.mutable_data<std::int64_t>()) {
      target = t % 5 == 3 ? -100 : t * 7 % vocabulary;
      ++t;
    }
  }

  CrossEntropyOptions options(bool all) const {
    CrossEntropyOptions options{.denominator = 123.0};
    if (!all) return options;
    options.label_smoothing = 0.1;
    options.token_weights = token_weights;
    options.z_loss_coef = 0.01;
    return options;
  }

  Tensor x, weight, targets, token_weights;
};

constexpr double kGradLoss = 0.7;  // no power of two

enum class Way { kLogits, kTwice, kOnce };

// Loss and gradients, of a loss that reaches the op with a cotangent other than one.
TensorList run(const Inputs& in, Way way, bool all_options = false, double known = kGradLoss) {
  in.x.set_grad({});
  in.weight.set_grad({});
  auto options = in.options(all_options);
  if (way == Way::kOnce) options.grad_loss = known;
  const auto dtype = arithmetic_dtype(in.x.dtype());
  const Tensor loss = way == Way::kLogits
                          ? cross_entropy(linear(in.x, in.weight, kLinearCrossEntropyRows, dtype),
                                          in.targets, options)
                          : linear_cross_entropy(in.x, in.weight, in.targets, options);
  mul(loss, kGradLoss).backward();
  return {loss.detach(), in.x.grad(), in.weight.grad()};
}

constexpr auto kDtypes = {Dtype::kFloat32, Dtype::kFloat64, Dtype::kBFloat16};

TEST(LinearCrossEntropy, HasTheBitsOfLinearAndCrossEntropyBothWays) {
  constexpr auto kRows = kLinearCrossEntropyRows;
  for (const auto dtype : kDtypes) {
    for (const auto tokens : {std::int64_t{1}, std::int64_t{7}, kRows - 1, kRows, kRows + 1,
                              2 * kRows, 2 * kRows + 61}) {
      for (const bool all : {false, true}) {
        for (const std::int64_t vocabulary : {37, 1}) {
          const Inputs in(tokens, 24, vocabulary, dtype);
          const auto plain = run(in, Way::kLogits, all);
          for (const auto way : {Way::kTwice, Way::kOnce}) {
            const auto fused = run(in, way, all);
            for (std::size_t i = 0; i < fused.size(); ++i) {
              EXPECT_TRUE(bitwise_equal(fused[i], plain[i]))
                  << dtype << ", " << tokens << " tokens, " << vocabulary << " classes, result "
                  << i << (way == Way::kOnce ? ", once" : ", twice");
            }
          }
        }
      }
    }
  }
}

TEST(LinearCrossEntropy, ReadsPackedWeightsBothWays) {
  for (const auto dtype : kDtypes) {
    Inputs in(600, 24, 37, dtype);
    const auto plain = run(in, Way::kLogits, true);
    in.weight = nd_to_nz(in.weight.detach()).set_requires_grad(true);
    for (const auto way : {Way::kTwice, Way::kOnce}) {
      const auto fused = run(in, way, true);
      for (std::size_t i = 0; i < fused.size(); ++i) {
        EXPECT_TRUE(bitwise_equal(fused[i], plain[i])) << dtype << ", result " << i;
      }
    }
  }
}

TEST(LinearCrossEntropy, IsItsFormulaInFloat64) {
  const Inputs in(2 * kLinearCrossEntropyRows + 5, 6, 11, Dtype::kFloat64);
  const double smoothing = 0.1, z_coef = 0.01;
  const Tensor logits = linear(in.x, in.weight);
  const Tensor lse = logsumexp(logits, 1);
  const Tensor weighted = lse - sum(logits, 1) * (smoothing / 11) + square(lse) * z_coef;
  const Tensor ignored = eq(in.targets, Tensor::from<std::int64_t>({-100}, {}));
  const Tensor of_target = nll_loss(logits, in.targets, {.reduction = Reduction::kNone});
  const Tensor losses = masked_fill(weighted, ignored, 0) + of_target * (1 - smoothing);
  const Tensor expected = sum(losses * in.token_weights) * (1 / 123.0);
  mul(expected, kGradLoss).backward();
  const TensorList plain = {expected.detach(), in.x.grad(), in.weight.grad()};
  for (const double known : {kGradLoss, -0.3}) {
    for (const auto way : {Way::kLogits, Way::kTwice, Way::kOnce}) {
      const auto results = run(in, way, true, known);
      for (std::size_t i = 0; i < results.size(); ++i) {
        EXPECT_TRUE(all_close(results[i], plain[i], 1e-12, 1e-12)) << i;
      }
    }
  }
}

TEST(LinearCrossEntropy, GradientsMatchFiniteDifferencesForAnyCotangent) {
  const Inputs in(9, 4, 5, Dtype::kFloat64);
  for (const bool all : {false, true}) {
    for (const auto known : {std::optional<double>(), std::optional(0.25), std::optional(-3.0)}) {
      auto options = in.options(all);
      options.grad_loss = known;
      EXPECT_TRUE(gradients_agree(
          [&](const TensorList& inputs) -> TensorList {
            return {linear_cross_entropy(inputs[0], inputs[1], in.targets, options)};
          },
          {variable({9, 4}, 7), variable({5, 4}, 8)}));
    }
  }
}

TEST(LinearCrossEntropy, ScalesWhatItMadeForAnotherCotangent) {
  for (const auto dtype : kDtypes) {
    const Inputs in(700, 8, 37, dtype);
    const auto wide = arithmetic_dtype(dtype);
    auto options = in.options(true);
    options.grad_loss = 0.3;
    linear_cross_entropy(in.x, in.weight, in.targets, options)
        .backward(Tensor::full({}, 0.3, wide));
    const double ratio =
        Tensor::full({}, kGradLoss, wide).item() / Tensor::full({}, 0.3, wide).item();
    const Tensor of_x = mul(to_dtype(in.x.grad(), dtype), ratio);
    const Tensor of_weight = mul(in.weight.grad(), ratio);
    const auto scaled = run(in, Way::kOnce, true, 0.3);
    EXPECT_TRUE(bitwise_equal(scaled[1], to_dtype(of_x, wide)));
    EXPECT_TRUE(bitwise_equal(scaled[2], of_weight));
  }
}

TEST(LinearCrossEntropy, GivesGradientsInForwardForOneBackwardAfterAnother) {
  const Inputs in(600, 8, 37, Dtype::kFloat32);
  const auto once = run(in, Way::kOnce);
  const Tensor doubled = mul(once[2], 2);
  in.x.set_grad({});
  in.weight.set_grad({});
  auto options = in.options(false);
  options.grad_loss = kGradLoss;
  const Tensor loss = mul(linear_cross_entropy(in.x, in.weight, in.targets, options), kGradLoss);
  loss.backward({}, /*retain_graph=*/true);
  loss.backward();
  EXPECT_TRUE(bitwise_equal(in.weight.grad(), doubled));
}

// The number is part of the bits of every run.
TEST(LinearCrossEntropy, AddsTheGradientsOfRunsOf512Tokens) {
  const Inputs in(1300, 8, 40, Dtype::kFloat32);
  const auto fused = run(in, Way::kTwice);
  in.weight.set_grad({});
  mul(cross_entropy(linear(in.x, in.weight, 512), in.targets, {.denominator = 123.0}), kGradLoss)
      .backward();
  EXPECT_TRUE(bitwise_equal(fused[2], in.weight.grad()));
}

TEST(LinearCrossEntropy, GivesZerosWithoutTokensAndWithoutTargets) {
  for (const std::int64_t tokens : {0, 3}) {
    for (const std::optional<double> grad_loss : {std::optional<double>(), std::optional(1.0)}) {
      for (int i = 0; i < 4; ++i) Tensor::full({40, 8}, 7.0);  // what freed memory may hold
      const Tensor x = Tensor::ones({tokens, 8}).set_requires_grad(true);
      const Tensor weight = Tensor::ones({40, 8}).set_requires_grad(true);
      const Tensor targets = Tensor::full({tokens}, -100, Dtype::kInt64);
      const Tensor loss = linear_cross_entropy(
          x, weight, targets, {.label_smoothing = 0.1, .z_loss_coef = 0.1, .grad_loss = grad_loss});
      loss.backward();
      EXPECT_EQ(loss.item(), 0);
      EXPECT_TRUE(bitwise_equal(x.grad(), Tensor::zeros({tokens, 8})));
      EXPECT_TRUE(bitwise_equal(weight.grad(), Tensor::zeros({40, 8})));
    }
  }
}

TEST(LinearCrossEntropy, NeverHoldsAllLogits) {
  const Inputs in(4 * kLinearCrossEntropyRows, 8, 300, Dtype::kFloat32);
  auto& arena = *RankContext::current().arena();
  const auto before = arena.live().total();
  const auto logits = in.x.dim(0) * in.weight.dim(0) * 4;
  const auto peak = [&](Way way) {
    arena.reset_peak();
    run(in, way);
    return arena.peak().total() - before;
  };
  EXPECT_LT(peak(Way::kOnce), logits / 2);
  EXPECT_LT(peak(Way::kTwice), logits / 2);
  EXPECT_GT(peak(Way::kLogits), logits);
}

// Bytes that the op has taken at its peak beside loss and gradients, which are kept.
std::int64_t bytes_beside_results(std::int64_t tokens, Dtype dtype) {
  const Inputs in(tokens, 16, 100, dtype);
  auto options = in.options(true);
  options.grad_loss = 0.5;
  auto& arena = *RankContext::current().arena();
  arena.reset_peak();
  const auto before = arena.live().total();
  const Tensor loss = linear_cross_entropy(in.x, in.weight, in.targets, options);
  const auto results = arena.live().total() - before;
  const auto gradients = tokens * 16 * size_of(dtype) + 100 * 16 * size_of(loss.dtype());
  EXPECT_EQ(loss.grad_fn()->saved_bytes(), gradients);
  EXPECT_NEAR(static_cast<double>(results), static_cast<double>(gradients), 256);
  return arena.peak().total() - before - results;
}

TEST(LinearCrossEntropy, TakesAsMuchForAnyNumberOfTokensBesideGradientsMadeInForward) {
  for (const auto dtype : kDtypes) {
    const auto of_one = bytes_beside_results(kLinearCrossEntropyRows, dtype);
    EXPECT_EQ(bytes_beside_results(20 * kLinearCrossEntropyRows, dtype), of_one) << dtype;
    EXPECT_GT(of_one, kLinearCrossEntropyRows * 100 * 4);
  }
}

TEST(LinearCrossEntropy, MakesInForwardWhatWillBeAskedForAlone) {
  const std::int64_t tokens = 100, hidden = 512, vocabulary = 20;
  const Inputs in(tokens, hidden, vocabulary, Dtype::kFloat32);
  auto options = in.options(false);
  options.grad_loss = kGradLoss;
  auto& arena = *RankContext::current().arena();
  const auto peak_of = [&](const std::function<void()>& body) {
    const auto before = arena.live().total();
    arena.reset_peak();
    body();
    return arena.peak().total() - before;
  };
  const auto loss = [&](const Tensor& x, const Tensor& weight) {
    return linear_cross_entropy(x, weight, in.targets, options);
  };
  const Tensor x = in.x.detach(), weight = in.weight.detach();
  EXPECT_EQ(loss(in.x, weight).grad_fn()->saved_bytes(), tokens * hidden * 4);
  EXPECT_EQ(loss(x, in.weight).grad_fn()->saved_bytes(), vocabulary * hidden * 4);
  const auto without = peak_of([&] { loss(x, weight); });
  EXPECT_LT(without, tokens * hidden * 4);
  EXPECT_EQ(peak_of([&] {
              const NoGradGuard no_grad;
              loss(in.x, in.weight);
            }),
            without);
  // A body that will run again makes them when it does.
  const auto plain = run(in, Way::kOnce);
  in.x.set_grad({});
  in.weight.set_grad({});
  TensorList result;
  EXPECT_LE(peak_of([&] {
              result = checkpoint(
                  [&](const TensorList& inputs) { return TensorList{loss(inputs[0], inputs[1])}; },
                  {in.x, in.weight});
            }),
            without + 256);
  mul(result[0], kGradLoss).backward();
  EXPECT_TRUE(bitwise_equal(in.x.grad(), plain[1]));
  EXPECT_TRUE(bitwise_equal(in.weight.grad(), plain[2]));
}

}  // namespace
}  // namespace moegrad::ops::linear_cross_entropy_test
