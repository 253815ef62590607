// SPDX-License-Identifier: Apache-2.0
#include "nn/initial_values.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "nn/experts.h"
#include "nn/init.h"
#include "nn/linear.h"
#include "nn/normal_quantile.h"
#include "tests/framework/distributed/hand_shards.h"
#include "tests/testing.h"

namespace moegrad::nn::initial_values_test {
namespace {

using namespace test;

/// A weight with one declaration.
class Holder final : public Callable<Holder> {
 public:
  explicit Holder(const Shape& shape, InitialValues initial = {}, ParameterLayout layout = {},
                  Dtype dtype = Dtype::kFloat64)
      : weight(Tensor::full(shape, 7.0, dtype)) {
    register_parameter("weight", weight, std::move(layout), initial);
  }
  Tensor forward(const Tensor& x) { return x; }
  Tensor weight;
};

struct Moments {
  double mean = 0.0, std = 0.0, least = 0.0, most = 0.0;
};

Moments moments_of(const Tensor& tensor) {
  const auto values = tensor.data<double>();
  Moments found{.least = values[0], .most = values[0]};
  double sum = 0.0, squares = 0.0;
  for (const double value : values) {
    sum += value;
    squares += value * value;
    found.least = std::min(found.least, value);
    found.most = std::max(found.most, value);
  }
  const auto n = static_cast<double>(values.size());
  found.mean = sum / n;
  found.std = std::sqrt(squares / n - found.mean * found.mean);
  return found;
}

Moments moments_of(const InitialValues& initial, const Shape& shape = {300, 200},
                   Dtype dtype = Dtype::kFloat64) {
  Holder holder(shape, initial, {}, dtype);
  init_weights(holder, 1, /*std=*/1e9);
  return moments_of(to_dtype(holder.weight, Dtype::kFloat64));
}

TEST(NormalQuantile, IsTheInverseOfTheDistribution) {
  // From mpmath, with 60 digits and more.
  const std::vector<std::pair<double, double>> expected = {
      {1e-300, -37.047096299361201}, {1e-20, -9.2623400897984074}, {1e-5, -4.2648907939228247},
      {0.02, -2.0537489106318229},   {0.3, -0.52440051270804067},  {0.5, 0.0},
      {0.6, 0.25334710313579973},    {0.9, 1.2815515655446006},    {0.975, 1.9599639845400542}};
  for (const auto& [p, x] : expected) {
    EXPECT_NEAR(normal_quantile(p), x, 1e-14 * std::abs(x)) << p;
  }
  EXPECT_EQ(normal_quantile(0.0), -std::numeric_limits<double>::infinity());
  EXPECT_EQ(normal_quantile(1.0), std::numeric_limits<double>::infinity());
}

TEST(NormalQuantile, OfATailIsThatOfTheMirroredTail) {
  for (const double p : {0.0, 0.1, 0.5, 0.9, 1.0}) {
    EXPECT_EQ(TruncNormalQuantile(20.0, 21.0)(p), -TruncNormalQuantile(-21.0, -20.0)(1.0 - p));
  }
  // From mpmath, with 60 digits.
  EXPECT_NEAR(TruncNormalQuantile(20.0, 30.0)(0.5), 20.034541676514022, 1e-13);
}

// The widths and bounds are those of torch.nn.init for a weight [300, 200].
TEST(InitialValues, HaveTheWidthsOfPyTorch) {
  const double kaiming = std::sqrt(2.0 / 200), xavier = std::sqrt(2.0 / 500);
  const auto expect_normal = [](const InitialValues& initial, double std) {
    const auto found = moments_of(initial);
    EXPECT_NEAR(found.mean, 0.0, 0.02 * std);
    EXPECT_NEAR(found.std, std, 0.01 * std);
    EXPECT_GT(found.most, 3.0 * std);
  };
  const auto expect_uniform = [](const InitialValues& initial, double std) {
    const double bound = std::sqrt(3.0) * std;
    const auto found = moments_of(initial);
    EXPECT_NEAR(found.std, std, 0.01 * std);
    EXPECT_LE(found.most, bound);
    EXPECT_GE(found.least, -bound);
    EXPECT_NEAR(found.most, bound, 1e-3 * bound);
    EXPECT_NEAR(found.least, -bound, 1e-3 * bound);
  };
  expect_normal(InitialValues::kaiming_normal(), kaiming);
  expect_normal(InitialValues::kaiming_normal(0.0, Fan::kOut), std::sqrt(2.0 / 300));
  expect_uniform(InitialValues::kaiming_uniform(), kaiming);
  // torch.nn.Linear's default: bounds of 1 / sqrt(in).
  expect_uniform(InitialValues::kaiming_uniform(std::sqrt(5.0)), std::sqrt(1.0 / 200 / 3));
  expect_normal(InitialValues::xavier_normal(), xavier);
  expect_uniform(InitialValues::xavier_uniform(), xavier);
  expect_uniform(InitialValues::xavier_uniform(5.0 / 3.0), 5.0 / 3.0 * xavier);
}

TEST(InitialValues, UniformConstantAndNormalNeedNoFan) {
  const auto uniform = moments_of(InitialValues::uniform(2.0, 5.0), {60'000});
  EXPECT_NEAR(uniform.mean, 3.5, 0.02);
  EXPECT_NEAR(uniform.least, 2.0, 1e-3);
  EXPECT_NEAR(uniform.most, 5.0, 1e-3);
  EXPECT_GE(uniform.least, 2.0);
  EXPECT_LT(uniform.most, 5.0);
  // Rounding to float32 takes half of an eighth of these numbers to the end of the interval.
  const auto narrow =
      moments_of(InitialValues::uniform(1.0, 1.0 + 0x1p-20), {10'000}, Dtype::kFloat32);
  EXPECT_EQ(narrow.least, 1.0);
  EXPECT_EQ(narrow.most, 1.0 + 7 * 0x1p-23);
  // The float32 number next to 0.1 is larger.
  const auto tenth = moments_of(InitialValues::uniform(0.0999999, 0.1), {10'000}, Dtype::kFloat32);
  EXPECT_LT(tenth.most, 0.1);
  const auto constant = moments_of(InitialValues::constant(-0.25), {3});
  EXPECT_EQ(constant.least, -0.25);
  EXPECT_EQ(constant.most, -0.25);
  EXPECT_NEAR(moments_of(InitialValues::normal(3.0), {60'000}).std, 3.0, 0.03);
}

// Mean and standard deviation of the truncated normal distribution, by its formulas.
TEST(InitialValues, TruncNormalIsNormalWithinItsBounds) {
  const auto middle = moments_of(InitialValues::trunc_normal(0.5, 2.0, -1.0, 1.5), {60'000});
  EXPECT_NEAR(middle.mean, 0.28087759, 0.015);
  EXPECT_NEAR(middle.std, 0.70262182, 0.007);
  EXPECT_GE(middle.least, -1.0);
  EXPECT_LE(middle.most, 1.5);
  const auto tail = moments_of(InitialValues::trunc_normal(0.5, 2.0, 3.0, 4.0), {60'000});
  EXPECT_NEAR(tail.mean, 3.43858394, 0.006);
  EXPECT_NEAR(tail.std, 0.28355232, 0.003);
  EXPECT_GE(tail.least, 3.0);
  EXPECT_LE(tail.most, 4.0);
}

std::vector<InitialValues> all_kinds() {
  return {InitialValues::normal(0.1),         InitialValues::uniform(-1.0, 3.0),
          InitialValues::constant(2.0),       InitialValues::trunc_normal(),
          InitialValues::kaiming_uniform(),   InitialValues::kaiming_normal(),
          InitialValues::xavier_uniform(2.0), InitialValues::xavier_normal()};
}

TEST(InitialValues, AShardGetsItsPartOfTheWhole) {
  for (const bool in_first : {false, true}) {
    const ParameterLayout layout = {.stacked = in_first ? Shape{4, 5, 6} : Shape{4, 6, 5},
                                    .in_first = in_first};
    const Shape shape = in_first ? Shape{20, 6} : Shape{24, 5};
    for (std::size_t kind = 0; kind < all_kinds().size(); ++kind) {
      Holder whole(shape, {}, layout);
      init_parameter(whole, "weight", all_kinds()[kind], 3);
      for (const auto& [begin, end] :
           std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 7}, {7, 13}, {13, 13}}) {
        const auto spec = test::range_spec(shape, begin, end, nullptr);
        Holder part(shape, {}, layout);
        part.weight = test::shard_of(Tensor::zeros(shape, Dtype::kFloat64), spec);
        init_parameter(part, "weight", all_kinds()[kind], 3);
        EXPECT_TRUE(
            bitwise_equal(part.weight.detach(), test::shard_of(whole.weight.detach(), spec)))
            << kind << ' ' << begin << ' ' << in_first;
      }
    }
  }
}

// gate_up_proj is [E, 2I, H]: fan_in H and, as gate_proj and up_proj have it, fan_out I.
TEST(InitialValues, TheFansOfStackedExpertsAreThoseOfOneMatrix) {
  for (const auto weights : {ExpertWeights::kPretransposed, ExpertWeights::kHuggingFace}) {
    GroupedExperts experts({.hidden_size = 40,
                            .intermediate_size = 30,
                            .num_experts = 20,
                            .weights = weights,
                            .dtype = Dtype::kFloat64});
    const auto std_of = [&](const std::string& name, const InitialValues& initial) {
      init_parameter(experts, name, initial, 1);
      const auto index = name == "gate_up_proj" ? 0U : 1U;
      return moments_of(experts.named_parameters()[index].tensor).std;
    };
    const auto in = InitialValues::kaiming_normal();
    const auto out = InitialValues::kaiming_normal(0.0, Fan::kOut);
    EXPECT_NEAR(std_of("gate_up_proj", in), std::sqrt(2.0 / 40), 0.004);
    EXPECT_NEAR(std_of("gate_up_proj", out), std::sqrt(2.0 / 30), 0.004);
    EXPECT_NEAR(std_of("down_proj", in), std::sqrt(2.0 / 30), 0.004);
    EXPECT_NEAR(std_of("down_proj", out), std::sqrt(2.0 / 40), 0.004);
  }
}

TEST(InitialValues, BothExpertOrientationsHoldTheSameNumbers) {
  for (std::size_t kind = 0; kind < all_kinds().size(); ++kind) {
    Holder in_first({4 * 5, 6}, {}, {.stacked = {4, 5, 6}, .in_first = true});
    Holder out_first({4 * 6, 5}, {}, {.stacked = {4, 6, 5}});
    init_parameter(in_first, "weight", all_kinds()[kind], 3);
    init_parameter(out_first, "weight", all_kinds()[kind], 3);
    const auto x = in_first.weight.data<double>(), y = out_first.weight.data<double>();
    for (std::size_t e = 0; e < 4; ++e) {
      for (std::size_t i = 0; i < 5; ++i) {
        for (std::size_t o = 0; o < 6; ++o) {
          EXPECT_EQ(x[(e * 5 + i) * 6 + o], y[(e * 6 + o) * 5 + i]) << kind;
        }
      }
    }
  }
}

TEST(InitParameter, WritesWhatInitWeightsWouldHaveAndNothingElse) {
  for (const auto& initial : all_kinds()) {
    Holder declared({4, 5}, initial), plain({4, 5});
    init_weights(declared, 9, 1e9);
    init_parameter(plain, "weight", initial, 9);
    EXPECT_TRUE(bitwise_equal(declared.weight.detach(), plain.weight.detach()));
  }
  Linear linear({.in_features = 3, .out_features = 2, .bias = true});
  init_weights(linear, 1, 0.1);
  const Tensor weight = clone(linear.weight());
  init_parameter(linear, "bias", InitialValues::uniform(1.0, 2.0), 1);
  EXPECT_TRUE(bitwise_equal(linear.weight().detach(), weight));
  EXPECT_GE(linear.bias().data<float>()[1], 1.0F);
}

class Tied final : public Callable<Tied> {
 public:
  Tied() : first_({.in_features = 3, .out_features = 2}), second_(first_.weight()) {
    register_module("first", first_);
    register_module("second", second_);
  }
  Tensor forward(const Tensor& x) { return second_(first_(x)); }

 private:
  Linear first_, second_;
};

TEST(InitParameter, ATiedParameterHasTheValuesOfItsFirstName) {
  Tied one, other;
  init_parameter(one, "first.weight", InitialValues::normal(1.0), 1);
  init_parameter(other, "second.weight", InitialValues::normal(1.0), 1);
  EXPECT_TRUE(bitwise_equal(one.named_parameters()[0].tensor.detach(),
                            other.named_parameters()[0].tensor.detach()));
}

TEST(InitParameter, RejectsWhatItCannotWriteAndWritesNothing) {
  Holder vector({4});
  const auto init = [&](const std::string& name, const InitialValues& initial) {
    init_parameter(vector, name, initial, 1);
  };
  EXPECT_EQ(message_of<ValueError>([&] { init("wieght", InitialValues::ones()); }),
            "init_parameter: the module must have a parameter 'wieght', got none");
  EXPECT_EQ(message_of<ValueError>([&] { init("weight", {}); }),
            "init_parameter: values of 'weight' must be given, got InitialValues()");
  EXPECT_EQ(message_of<ValueError>([&] { init("weight", InitialValues::normal()); }),
            "init_parameter: normal() of 'weight' must be given a std");
  EXPECT_EQ(message_of<ShapeError>([&] { init("weight", InitialValues::xavier_normal()); }),
            "init_parameter: fan_in and fan_out of 'weight' need two dimensions or more, got [4]");
  EXPECT_TRUE(bitwise_equal(vector.weight.detach(), Tensor::full({4}, 7.0, Dtype::kFloat64)));
}

TEST(InitWeights, RejectsFansOfAVectorBeforeItWrites) {
  class Two final : public Callable<Two> {
   public:
    Two() {
      register_parameter("first", first, InitialValues::ones());
      register_parameter("second", second, InitialValues::kaiming_uniform());
    }
    Tensor forward(const Tensor& x) { return x; }
    Tensor first = Tensor::zeros({2}), second = Tensor::zeros({2});
  } two;
  EXPECT_EQ(message_of<ShapeError>([&] { init_weights(two, 1, 0.02); }),
            "init_weights: fan_in and fan_out of 'second' need two dimensions or more, got [2]");
  EXPECT_TRUE(bitwise_equal(two.first.detach(), Tensor::zeros({2})));
}

TEST(InitialValues, RejectsWhatIsNoDistribution) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(message_of<ValueError>([] { InitialValues::normal(-1.0); }),
            "normal: std must be finite and >= 0, got -1");
  EXPECT_EQ(message_of<ValueError>([&] { InitialValues::constant(nan); }),
            "constant: value must be a number, got nan");
  EXPECT_EQ(message_of<ValueError>([] { InitialValues::uniform(2.0, 1.0); }),
            "uniform: [low, high) must be an interval, got [2, 1)");
  EXPECT_EQ(message_of<ValueError>([] { InitialValues::trunc_normal(0.0, 0.0); }),
            "trunc_normal: std must be finite and > 0, got 0");
  EXPECT_EQ(message_of<ValueError>([] { InitialValues::trunc_normal(0.0, 1.0, 2.0, 2.0); }),
            "trunc_normal: low must be below high, got 2 and 2");
  EXPECT_EQ(
      message_of<ValueError>([] { InitialValues::trunc_normal(0.0, 1.0, 50.0, 60.0); }),
      "trunc_normal: [low, high] must be within 37 std of the mean 0, got [50, 60] and std 1");
  EXPECT_EQ(message_of<ValueError>([] { InitialValues::xavier_uniform(-2.0); }),
            "xavier_uniform: gain must be finite and >= 0, got -2");
  EXPECT_EQ(message_of<ValueError>([] { InitialValues::xavier_normal(-2.0); }),
            "xavier_normal: gain must be finite and >= 0, got -2");
  EXPECT_EQ(message_of<ValueError>([&] { InitialValues::kaiming_normal(nan); }),
            "kaiming: negative_slope must be finite, got nan");
}

}  // namespace
}  // namespace moegrad::nn::initial_values_test
