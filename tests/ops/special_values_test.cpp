// SPDX-License-Identifier: Apache-2.0
// What ops make of ties, NaN, infinities and zeros, which random numbers do not meet.
#include <cmath>
#include <functional>
#include <limits>

#include "framework/tensor/nested_values.h"
#include "ops/attention.h"
#include "ops/aux_loss.h"
#include "ops/compare.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/indexing.h"
#include "ops/losses.h"
#include "ops/masks.h"
#include "ops/order.h"
#include "ops/reduce.h"
#include "ops/statistics.h"
#include "tests/testing.h"

namespace moegrad::ops::special_values_test {
namespace {

using namespace test;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

Tensor row(const std::vector<double>& values) { return Tensor::from(values, {std::ssize(values)}); }

Tensor leaf(const std::vector<double>& values) { return row(values).set_requires_grad(true); }

std::vector<double> values_of(const Tensor& tensor) {
  const auto values = tensor.data<double>();
  return {values.begin(), values.end()};
}

using Values = std::vector<double>;

TEST(SpecialValues, EqualOnesShareTheGradientOfMaximumAndMinimum) {
  using Binary = Tensor (*)(const Tensor&, const Tensor&);
  for (const bool larger : {true, false}) {
    const Binary op = larger ? Binary{maximum} : Binary{minimum};
    const Tensor a = leaf({1, 2, 3}), b = leaf({1, 3, 2});
    sum(op(a, b)).backward();
    EXPECT_EQ(values_of(a.grad()), (larger ? Values{0.5, 0, 1} : Values{0.5, 1, 0}));
    EXPECT_EQ(values_of(b.grad()), (larger ? Values{0.5, 1, 0} : Values{0.5, 0, 1}));
    for (const auto& y : {op(row({kNaN}), row({1})), op(row({1}), row({kNaN}))}) {
      EXPECT_TRUE(std::isnan(y.item()));
    }
  }
}

TEST(SpecialValues, MaximumAndMinimumWithANumber) {
  const Tensor a = leaf({-1, 0, 2, kNaN});
  const Tensor y = maximum(a, 0);
  EXPECT_TRUE(allclose(y, row({0, 0, 2, kNaN}), 0, 0, /*equal_nan=*/true));
  sum(y).backward();
  EXPECT_EQ(values_of(a.grad().slice(0, 0, 3)), (Values{0, 0.5, 1}));
  EXPECT_TRUE(all(isnan(minimum(row({1, 2}), kNaN))).item<bool>());
}

// As of a square root at 0 behind it.
TEST(SpecialValues, WhatWasNotTakenGetsNoGradientOfAnInfiniteOne) {
  const Tensor infinite = row({kInfinity});
  const auto gradients = [&](const Tensor& y, const Tensor& a, const Tensor& b) {
    y.backward(infinite);
    return Values{a.grad().item(), b.grad().item()};
  };
  const Tensor a = leaf({-1}), b = leaf({0}), c = leaf({-1}), d = leaf({0});
  EXPECT_EQ(gradients(maximum(a, b), a, b), (Values{0, kInfinity}));
  EXPECT_EQ(gradients(minimum(c, d), c, d), (Values{kInfinity, 0}));
  const Tensor base = leaf({2}), zero = leaf({0}), none = leaf({0}), two = leaf({2});
  EXPECT_EQ(gradients(pow(base, zero), base, zero)[0], 0);
  EXPECT_EQ(gradients(pow(none, two), none, two)[1], 0);
}

TEST(SpecialValues, ReluPassesTheGradientOfANaNAndClampDoesNot) {
  const Tensor x = leaf({kNaN});
  relu(x).backward(row({3}));
  EXPECT_EQ(values_of(x.grad()), Values{3});
  const Tensor y = leaf({kNaN});
  clamp(y, -1, 1).backward(row({3}));
  EXPECT_EQ(values_of(y.grad()), Values{0});
}

TEST(SpecialValues, IsnanFindsNanOfEitherSignAlone) {
  const Tensor x = row({kNaN, 0, kInfinity, -kNaN, -kInfinity});
  EXPECT_TRUE(equal(isnan(x), Tensor::of({true, false, false, true, false}, Dtype::kBool)));
  EXPECT_FALSE(any(isnan(Tensor::arange(3))).item<bool>());
}

TEST(SpecialValues, ZeroBasesAndExponentsHaveFiniteGradients) {
  const Tensor a = leaf({0, 0, 2}), b = leaf({0, 2, 0});
  const Tensor y = pow(a, b);
  EXPECT_EQ(values_of(y), (Values{1, 0, 1}));
  sum(y).backward();
  EXPECT_EQ(values_of(a.grad()), (Values{0, 0, 0}));
  EXPECT_EQ(values_of(b.grad()), (Values{0, 0, std::log(2.0)}));
}

TEST(SpecialValues, LimitsOfClampPassTheGradientAndAbsHasNoneAtZero) {
  const Tensor x = leaf({-2, -1, 0, 1, 2});
  sum(clamp(x, -1, 1)).backward();
  EXPECT_EQ(values_of(x.grad()), (Values{0, 1, 1, 1, 0}));
  const Tensor z = leaf({-3, 0, 3});
  sum(abs(z)).backward();
  EXPECT_EQ(values_of(z.grad()), (Values{-1, 0, 1}));
  EXPECT_TRUE(std::isnan(clamp(row({kNaN}), -1, 1).item()));
}

TEST(SpecialValues, ComparisonsWithNaNAreFalseButForNe) {
  const Tensor x = row({kNaN}), one = row({1});
  for (const auto& mask : {eq(x, one), lt(x, one), le(x, one), gt(x, one), ge(x, one), eq(x, x)}) {
    EXPECT_FALSE(mask.item<bool>());
  }
  EXPECT_TRUE(ne(x, x).item<bool>());
  EXPECT_EQ(integers(nonzero(row({0, kNaN, -0.0}))), (std::vector<std::int64_t>{1}));
}

TEST(SpecialValues, NaNIsTheLargestInEveryOrderAndBothExtremes) {
  using Integers = std::vector<std::int64_t>;
  const Tensor x = row({2, kNaN, 5, kNaN, -kInfinity});
  EXPECT_EQ(argmax(x, 0).item<int>(), 1);
  EXPECT_EQ(argmin(x, 0).item<int>(), 1);
  EXPECT_TRUE(std::isnan(min(x, 0).values.item()));
  EXPECT_TRUE(std::isnan(max(x, 0).values.item()));
  EXPECT_TRUE(std::isnan(min(row({3, 2, kNaN})).item()));
  EXPECT_EQ(argmax(row({3, 2, kNaN})).item<int>(), 2);
  EXPECT_EQ(integers(sort(x).indices), (Integers{4, 0, 2, 1, 3}));
  EXPECT_EQ(integers(sort(x, 0, /*descending=*/true).indices), (Integers{1, 3, 2, 0, 4}));
  EXPECT_EQ(integers(topk(x, 3).indices), (Integers{1, 3, 2}));
  EXPECT_EQ(integers(topk(x, 2, 0, /*largest=*/false).indices), (Integers{4, 0}));
  EXPECT_EQ(argmin(row({kNaN, kNaN}), 0).item<int>(), 0);
  EXPECT_EQ(integers(topk(Tensor::zeros({4}), 2).indices), (Integers{0, 1}));
}

TEST(SpecialValues, LogSumExpIsDefinedForInfinities) {
  EXPECT_EQ(logsumexp(row({-kInfinity, -kInfinity}), 0).item(), -kInfinity);
  EXPECT_EQ(logsumexp(row({kInfinity, 1}), 0).item(), kInfinity);
  EXPECT_EQ(logsumexp(row({-kInfinity, 3}), 0).item(), 3);
  EXPECT_EQ(logsumexp(Tensor::zeros({0}), 0).item(), -kInfinity);
}

TEST(SpecialValues, EqualElementsHaveNoDeviationAndNoGradient) {
  const Tensor x = leaf({2, 2, 2});
  const Tensor y = std(x, 0);
  EXPECT_EQ(y.item(), 0);
  y.backward();
  EXPECT_EQ(values_of(x.grad()), (Values{0, 0, 0}));
  EXPECT_TRUE(std::isnan(var(row({1}), 0).item()));
  // Their sum, and so their mean, is rounded.
  for (const std::int64_t n : {3, 41, 1000}) {
    for (const double value : {1.0, 0.1, 1e30}) {
      const Tensor equal = Tensor::full({n}, value).set_requires_grad(true);  // float32
      const Tensor deviation = std(equal);
      EXPECT_EQ(deviation.item(), 0) << n << " of " << value;
      deviation.backward();
      EXPECT_TRUE(bitwise_equal(equal.grad(), Tensor::zeros({n}))) << n << " of " << value;
    }
  }
}

TEST(SpecialValues, AMeanOfOnesIsOneAndAVarianceIsExactFarFromZero) {
  for (const std::int64_t n : {3, 41, 1000}) {
    const Tensor ones = Tensor::ones({n});
    EXPECT_EQ(mean(ones).item(), 1) << n;
    EXPECT_EQ(mean(ones, 0).item(), 1) << n;
    EXPECT_EQ(mean(ones, {0}).item(), 1) << n;
  }
  const Tensor far = Tensor::from(std::vector<float>{8388608, 8388609}, {2});
  EXPECT_EQ(var(far).item(), 0.5);
  EXPECT_EQ(std(far, 0, 0).item(), 0.5);
  EXPECT_TRUE(std::isnan(var(Tensor::zeros({0})).item()));
}

// Tenths, whose sum would lose digits if it were one float32 number.
TEST(SpecialValues, SumsOfManyNumbersKeepTheirDigitsAlongEveryDimension) {
  constexpr std::int64_t kRows = 60000;
  const Tensor t = Tensor::full({kRows, 2}, 0.1).set_requires_grad(true);  // float32
  const double tenth = static_cast<double>(0.1F), relative = 1e-6;
  const auto expect_near = [&](const Tensor& y, double expected) {
    const Tensor elements = clone(y.detach());
    for (const auto value : elements.data<float>()) {
      EXPECT_NEAR(value, expected, relative * expected);
    }
  };
  expect_near(sum(t, 0), kRows * tenth);
  expect_near(sum(t), 2 * kRows * tenth);
  expect_near(mean(t, 0), tenth);
  const Tensor sums = cumsum(t, 0);
  expect_near(sums[-1], kRows * tenth);
  sums.backward(Tensor::full({kRows, 2}, 0.1));
  expect_near(t.grad()[0], kRows * tenth);
  const Tensor bias = Tensor::zeros({2}).set_requires_grad(true);
  (t.detach() + bias).backward(t.detach());
  expect_near(bias.grad(), kRows * tenth);
}

TEST(SpecialValues, LossesLeaveOutWhatDoesNotCount) {
  const Tensor log_p = Tensor::from(Values{-kInfinity, 0, 0, -kInfinity}, {2, 2});
  const Tensor targets = Tensor::from(std::vector<std::int64_t>{1, -100}, {2});
  EXPECT_EQ(nll_loss(log_p, targets).item(), 0);
  EXPECT_TRUE(std::isnan(nll_loss(log_p, Tensor::full({2}, -100, Dtype::kInt64)).item()));
  const Tensor log_q = leaf({-kInfinity, 0});
  const Tensor kl = kl_div(log_q, row({0, 1}), Reduction::kSum);
  EXPECT_EQ(kl.item(), 0);
  kl.backward();
  EXPECT_EQ(values_of(log_q.grad()), (Values{0, -1}));
}

TEST(SpecialValues, ATokenThatAttendsToNothingGetsZerosAndFiniteGradients) {
  const Tensor q = test::variable({2, 1, 3}, 1), k = test::variable({2, 1, 3}, 2);
  const Tensor v = test::variable({2, 1, 3}, 3);
  const Tensor allowed = Tensor::from(std::vector<bool>{false, false, true, false}, {2, 2});
  const Tensor y = attention(q, k, v, Documents::one(2), 1, {.allowed = allowed});
  EXPECT_TRUE(bitwise_equal(clone(y.detach()[0]), Tensor::zeros({1, 3}, Dtype::kFloat64)));
  EXPECT_TRUE(bitwise_equal(clone(y.detach()[1]), clone(v.detach()[0])));
  sum(y).backward();
  EXPECT_EQ(values_of(v.grad()), (Values{1, 1, 1, 0, 0, 0}));
  for (const auto& x : {q, k}) EXPECT_EQ(values_of(x.grad()), Values(6, 0.0));
}

TEST(SpecialValues, IntegersCompareWithTheNumberItself) {
  const std::vector<std::int64_t> integers{
      std::numeric_limits<std::int64_t>::min(), -3, -1, 0, 1, 2,
      std::numeric_limits<std::int64_t>::max()};
  const Tensor a = Tensor::from(integers, {std::ssize(integers)});
  const auto check = [&](const Tensor& mask, const auto& compare, double b) {
    for (std::size_t i = 0; i < integers.size(); ++i) {
      // A long double holds every int64 and every double.
      EXPECT_EQ(mask.data<bool>()[i],
                compare(static_cast<long double>(integers[i]), static_cast<long double>(b)))
          << integers[i] << " and " << b;
    }
  };
  for (const double b : {-0.5, 0.5, 1.5, 1.0, -3.0, -0.0, 1e30, -1e30, 0x1p63, -0x1p63, kInfinity,
                         -kInfinity, kNaN}) {
    check(eq(a, b), std::equal_to<>(), b);
    check(ne(a, b), std::not_equal_to<>(), b);
    check(lt(a, b), std::less<>(), b);
    check(le(a, b), std::less_equal<>(), b);
    check(gt(a, b), std::greater<>(), b);
    check(ge(a, b), std::greater_equal<>(), b);
  }
}

TEST(SpecialValues, NoElementIsMadeOfANumberThatItsTypeDoesNotHold) {
  const Tensor i = Tensor::zeros({2}, Dtype::kInt64);
  const Tensor mask = Tensor::full({2}, 1, Dtype::kBool);
  EXPECT_EQ(test::message_of<ValueError>([&] { masked_fill(i, mask, -kInfinity); }),
            "masked_fill: int64 needs whole numbers in its range, got -inf");
  for (const double value : {1e30, 0x1p63, kNaN, 0.5}) {
    EXPECT_THROW(masked_fill(i, mask, value), ValueError) << value;
    EXPECT_THROW(Tensor::full({1}, value, Dtype::kInt64), ValueError) << value;
  }
  const Tensor narrow = Tensor::zeros({2});
  EXPECT_EQ(test::message_of<ValueError>([&] { masked_fill(narrow, mask, -1e300); }),
            "masked_fill: float32 needs numbers in its range, got -1e+300");
  EXPECT_EQ(test::message_of<ValueError>([] { Tensor::full({1}, 3.4e38, Dtype::kBFloat16); }),
            "full: bfloat16 needs numbers in its range, got 3.4e+38");
  EXPECT_EQ(masked_fill(narrow, mask, -kInfinity)[0].item(), -kInfinity);
  EXPECT_EQ(Tensor::full({1}, 1e300, Dtype::kFloat64).item(), 1e300);
  EXPECT_EQ(test::message_of<ValueError>([&] { masked_fill(mask, mask, 2); }),
            "masked_fill: bool needs true and false, got 2");
  EXPECT_EQ(test::integers(masked_fill(i, mask, -0x1p63))[1],
            std::numeric_limits<std::int64_t>::min());
}

// What is computed with a number, or comes out, is infinite where float32 does not hold it.
TEST(SpecialValues, ArithmeticBeyondTheRangeOfFloat32IsInfinite) {
  const Tensor x = Tensor::full({2}, 3);
  const auto all_are = [](const Tensor& y, double value) {
    return equal(y, Tensor::full({2}, value, y.dtype()));
  };
  EXPECT_TRUE(all_are(x * 1e300, kInfinity));
  EXPECT_TRUE(all_are(x / 1e300, 0));
  EXPECT_TRUE(all_are(-1e300 / x, -kInfinity));
  EXPECT_TRUE(all_are(minimum(x, -1e300), -kInfinity));
  EXPECT_TRUE(all_are(maximum(x, -1e300), 3));
  EXPECT_TRUE(all_are(pow(x, 1e300), kInfinity));
  EXPECT_TRUE(all_are(lt(x, 1e300), 1));
  EXPECT_TRUE(all_are(eq(x, 1e300), 0));
  const Tensor logits = Tensor::from(std::vector<float>{3e38F, 0, 3e38F, 0}, {2, 2});
  const Tensor targets = Tensor::from(std::vector<std::int64_t>{1, 1}, {2});
  EXPECT_EQ(cross_entropy(logits, targets, {.denominator = 1}).item(), kInfinity);
  EXPECT_EQ(z_loss(logits).item(), kInfinity);
}

TEST(SpecialValues, AProbabilityOfZeroElsewhereLeavesAWeightedLossFinite) {
  const Tensor logits = Tensor::from(Values{-kInfinity, 0, 0, 1}, {2, 2}).set_requires_grad(true);
  const Tensor targets = Tensor::from(std::vector<std::int64_t>{1, 1}, {2});
  const auto loss = [&](const CrossEntropyOptions& options) {
    return cross_entropy(logits, targets, options).item();
  };
  EXPECT_DOUBLE_EQ(loss({.class_weights = Tensor::ones({2}, Dtype::kFloat64)}), loss({}));
}

TEST(SpecialValues, WeightsOfLossesAreFiniteAndNotNegative) {
  const Tensor logits = test::randn({2, 2});
  const Tensor targets = Tensor::from(std::vector<std::int64_t>{1, 1}, {2});
  EXPECT_EQ(test::message_of<ValueError>([&] {
              nll_loss(logits, targets, {.class_weights = row({-0.5, 1})});
            }),
            "nll_loss: class_weights must be finite and >= 0, got -0.5");
  for (const double bad : {kNaN, kInfinity, -1.0}) {
    EXPECT_THROW(cross_entropy(logits, targets, {.class_weights = row({1, bad})}), ValueError);
    EXPECT_THROW(binary_cross_entropy_with_logits(logits, Tensor::ones({2, 2}, Dtype::kFloat64),
                                                  row({1, bad})),
                 ValueError);
  }
}

TEST(SpecialValues, RepeatsNoMoreThanThereIsRoomFor) {
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(test::message_of<ShapeError>([&] {
              repeat_interleave(row({1, 2}), kMost, 0);
            }),
            "repeat_interleave: the result must have at most 2^53 slices, got more");
  EXPECT_THROW(
      repeat_interleave(row({1, 2}), Tensor::from(std::vector<std::int64_t>{kMost, kMost}, {2}), 0),
      ShapeError);
}

}  // namespace
}  // namespace moegrad::ops::special_values_test
