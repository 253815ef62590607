// SPDX-License-Identifier: Apache-2.0
// The makers of Tensor that compute their elements (framework/tensor/make.cpp).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "framework/runtime/random.h"
#include "framework/tensor/fill.h"
#include "framework/tensor/meta.h"
#include "framework/tensor/nested_values.h"
#include "tests/testing.h"

namespace moegrad::make_test {
namespace {

using namespace test;
using Doubles = std::vector<double>;
using Integers = std::vector<std::int64_t>;

Doubles doubles(const Tensor& tensor) {
  const auto values = tensor.data<double>();
  return {values.begin(), values.end()};
}

TEST(MakeOf, TakesNumbersInNestedBraces) {
  const Tensor matrix = Tensor::of({{1, 2}, {3, 4.5}});
  EXPECT_TRUE(bitwise_equal(matrix, Tensor::from(std::vector<float>{1, 2, 3, 4.5F}, {2, 2})));
  EXPECT_EQ(Tensor::of(5).shape(), Shape{});
  EXPECT_EQ(Tensor::of({5}).shape(), Shape{1});
  EXPECT_EQ(Tensor::of({}).shape(), Shape{0});
  EXPECT_EQ(Tensor::of({{{1}, {2}, {3}}}).shape(), (Shape{1, 3, 1}));
  EXPECT_EQ(Tensor::of({{}, {}}).shape(), (Shape{2, 0}));
  EXPECT_EQ(integers(Tensor::of({-7, 1 << 30}, Dtype::kInt64)), (Integers{-7, 1 << 30}));
  EXPECT_EQ(doubles(Tensor::of({0.1}, Dtype::kFloat64)), Doubles{0.1});
  const Tensor mask = Tensor::of({true, false}, Dtype::kBool);
  EXPECT_TRUE(mask.data<bool>()[0]);
  EXPECT_FALSE(mask.data<bool>()[1]);
}

TEST(MakeOf, RefusesWhatIsNoTensor) {
  EXPECT_EQ(message_of<ShapeError>([] {
              Tensor::of({{1, 2}, {3}});
            }),
            "Tensor::of: the parts in a pair of braces must have one shape, got [2] and [1]");
  EXPECT_EQ(message_of<ShapeError>([] {
              Tensor::of({{1}, 2});
            }),
            "Tensor::of: the parts in a pair of braces must have one shape, got [1] and []");
  EXPECT_EQ(message_of<ValueError>([] {
              Tensor::of({1, 0.5}, Dtype::kInt64);
            }),
            "Tensor::of: int64 needs whole numbers in its range, got 0.5");
  EXPECT_EQ(message_of<ValueError>([] {
              Tensor::of({1, 2}, Dtype::kBool);
            }),
            "Tensor::of: bool needs true and false, got 2");
  EXPECT_EQ(message_of<ValueError>([] { Tensor::of({(std::int64_t{1} << 53) + 1}); }),
            "Tensor::of: integers must be in [-2^53, 2^53], got 9007199254740993");
  EXPECT_NO_THROW(Tensor::of({std::int64_t{1} << 53, -(std::int64_t{1} << 53)}));
  EXPECT_THROW(Tensor::of({std::numeric_limits<std::int64_t>::min()}), ValueError);
  EXPECT_THROW(Tensor::of({std::numeric_limits<std::uint64_t>::max()}), ValueError);
}

TEST(MakeArange, CountsByItsStep) {
  EXPECT_EQ(integers(Tensor::arange(4)), (Integers{0, 1, 2, 3}));
  EXPECT_EQ(integers(Tensor::arange(-1, 6, 3)), (Integers{-1, 2, 5}));
  EXPECT_EQ(integers(Tensor::arange(-1, 5, 3)), (Integers{-1, 2}));
  EXPECT_EQ(integers(Tensor::arange(3, -3, -2)), (Integers{3, 1, -1}));
  EXPECT_EQ(Tensor::arange(2, 2).shape(), Shape{0});
  EXPECT_EQ(Tensor::arange(3.0).dtype(), Dtype::kFloat32);
  EXPECT_EQ(doubles(Tensor::arange(1, 2.1, 0.25, Dtype::kFloat64)),
            (Doubles{1, 1.25, 1.5, 1.75, 2}));
  EXPECT_EQ(doubles(Tensor::arange(2, Dtype::kFloat64)), (Doubles{0, 1}));
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  constexpr auto kLeast = std::numeric_limits<std::int64_t>::min();
  EXPECT_EQ(integers(Tensor::arange(kLeast, kMost, kMost)), (Integers{kLeast, -1, kMost - 1}));
  EXPECT_EQ(integers(Tensor::arange(kMost, kLeast, kLeast)), (Integers{kMost, -1}));
}

TEST(MakeArange, RefusesStepsThatLeadNowhere) {
  EXPECT_EQ(message_of<ValueError>([] { Tensor::arange(0, 3, 0); }), "arange: step must not be 0");
  EXPECT_EQ(message_of<ValueError>([] { Tensor::arange(0.0, 3.0, 0.0); }),
            "arange: step must not be 0");
  EXPECT_EQ(message_of<ValueError>([] { Tensor::arange(0, 3, -1); }),
            "arange: from 0 to 3 the step must have the other sign, got -1");
  EXPECT_EQ(message_of<ValueError>([] { Tensor::arange(1.5, 0); }),
            "arange: from 1.5 to 0 the step must have the other sign, got 1");
  EXPECT_EQ(message_of<ValueError>([] { Tensor::arange(-5); }),
            "arange: from 0 to -5 the step must have the other sign, got 1");
  EXPECT_EQ(message_of<ValueError>([] { Tensor::arange(0.0, INFINITY); }),
            "arange: start, end and step must be finite, got 0, inf and 1");
  EXPECT_EQ(message_of<ShapeError>([] { Tensor::arange(0.0, 1e300); }),
            "arange: must give at most 2^63 - 1 elements, got 1e+300");
  EXPECT_EQ(message_of<ShapeError>([] {
              Tensor::arange(std::numeric_limits<std::int64_t>::min(),
                             std::numeric_limits<std::int64_t>::max());
            }),
            "arange: must give at most 2^63 - 1 elements, got 18446744073709551615");
}

TEST(MakeLinspace, BeginsAndEndsExactly) {
  EXPECT_EQ(doubles(Tensor::linspace(0, 1, 5, Dtype::kFloat64)), (Doubles{0, 0.25, 0.5, 0.75, 1}));
  EXPECT_EQ(doubles(Tensor::linspace(3, 1, 2, Dtype::kFloat64)), (Doubles{3, 1}));
  EXPECT_EQ(doubles(Tensor::linspace(3, 1, 1, Dtype::kFloat64)), Doubles{3});
  EXPECT_EQ(Tensor::linspace(3, 1, 0).shape(), Shape{0});
  const auto tenths = doubles(Tensor::linspace(-0.7, 0.7, 8, Dtype::kFloat64));
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(tenths[i], -tenths[7 - i]);
  EXPECT_EQ(tenths.back(), 0.7);
  EXPECT_EQ(message_of<ValueError>([] { Tensor::linspace(0, 1, -1); }),
            "linspace: steps must not be negative, got -1");
}

TEST(MakeEye, HasOnesOnTheDiagonal) {
  EXPECT_EQ(integers(Tensor::eye(2, Dtype::kInt64)), (Integers{1, 0, 0, 1}));
  EXPECT_EQ(integers(Tensor::eye(2, 3, Dtype::kInt64)), (Integers{1, 0, 0, 0, 1, 0}));
  EXPECT_EQ(integers(Tensor::eye(3, 1, Dtype::kInt64)), (Integers{1, 0, 0}));
  EXPECT_EQ(Tensor::eye(0).shape(), (Shape{0, 0}));
  EXPECT_EQ(message_of<ShapeError>([] { Tensor::eye(-1); }),
            "tensor: sizes must not be negative, got [-1, -1]");
}

TEST(MakeRandom, IsAFunctionOfSeedPurposeAndIndex) {
  const Tensor noise = Tensor::randn({2, 3}, {1, "noise"}, Dtype::kFloat64);
  const Random random(1, "noise");
  for (std::uint64_t i = 0; i < 6; ++i) EXPECT_EQ(doubles(noise)[i], random.normal(i));
  EXPECT_TRUE(bitwise_equal(noise, Tensor::randn({2, 3}, {1, "noise"}, Dtype::kFloat64)));
  EXPECT_FALSE(bitwise_equal(noise, Tensor::randn({2, 3}, {2, "noise"}, Dtype::kFloat64)));
  EXPECT_FALSE(bitwise_equal(noise, Tensor::randn({2, 3}, {1, "weights"}, Dtype::kFloat64)));
  // More elements begin with the same.
  EXPECT_TRUE(
      bitwise_equal(noise, Tensor::randn({4, 3}, {1, "noise"}, Dtype::kFloat64).slice(0, 0, 2)));
  EXPECT_EQ(doubles(Tensor::uniform({3}, {5, "u"}, Dtype::kFloat64))[2], Random(5, "u").uniform(2));
  EXPECT_EQ(Tensor::randn({2}, {1, "x"}).dtype(), Dtype::kFloat32);
}

TEST(MakeRandom, NeverGivesOneInAnyDtype) {
  for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64, Dtype::kBFloat16}) {
    const Tensor wide = to_dtype(Tensor::uniform({20'000}, {1, "u"}, dtype), Dtype::kFloat64);
    const auto [least, most] = std::ranges::minmax(wide.data<double>());
    EXPECT_GE(least, 0);
    EXPECT_LT(most, 1);
    EXPECT_GT(most, 0.99);
    double sum = 0;
    for (const auto value : wide.data<double>()) sum += value;
    EXPECT_NEAR(sum / 20'000, dtype == Dtype::kBFloat16 ? 0.498 : 0.5, 0.007);
  }
  EXPECT_EQ(message_of<DtypeError>([] {
              Tensor::uniform({1}, {1, "u"}, Dtype::kInt64);
            }),
            "uniform: dtype must be float32, float64 or bfloat16, got int64");
  EXPECT_EQ(message_of<DtypeError>([] {
              Tensor::randn({1}, {1, "u"}, Dtype::kBool);
            }),
            "randn: dtype must be float32, float64 or bfloat16, got bool");
}

TEST(MakeRandperm, GivesEveryOrderEquallyOften) {
  const auto order = integers(Tensor::randperm(100, {1, "order"}));
  auto sorted = order;
  std::ranges::sort(sorted);
  EXPECT_EQ(sorted, integers(Tensor::arange(100)));
  EXPECT_NE(order, sorted);
  EXPECT_EQ(order, integers(Tensor::randperm(100, {1, "order"})));
  EXPECT_EQ(Tensor::randperm(0, {1, "order"}).shape(), Shape{0});
  std::array<int, 6> seen{};
  constexpr int kDraws = 6'000;
  for (std::uint64_t seed = 0; seed < kDraws; ++seed) {
    const auto three = integers(Tensor::randperm(3, {seed, "order"}));
    ++seen[static_cast<std::size_t>(three[0] * 2 + (three[1] > three[2] ? 1 : 0))];
  }
  // Three sigma of a binomial with p = 1/6: 3 sqrt(6000 * 5 / 36) = 87.
  for (const auto count : seen) EXPECT_NEAR(count, kDraws / 6, 87);
}

TEST(Make, NeedsNoBytesUnderAMetaGuard) {
  const MetaGuard meta;
  EXPECT_TRUE(Tensor::of({{1, 2}}).is_meta());
  EXPECT_TRUE(Tensor::arange(std::int64_t{1} << 50).is_meta());
  EXPECT_TRUE(Tensor::randperm(std::int64_t{1} << 50, {1, "x"}).is_meta());
}

TEST(Make, RefusesElementsThatTheDtypeDoesNotHold) {
  EXPECT_EQ(message_of<ValueError>([] { Tensor::arange(0.0, 2.0, 0.5, Dtype::kInt64); }),
            "arange: int64 needs whole numbers in its range, got 0.5");
  EXPECT_EQ(message_of<ValueError>([] { Tensor::arange(0, 5, 1, Dtype::kBool); }),
            "arange: bool needs true and false, got 2");
  EXPECT_EQ(message_of<ValueError>([] { Tensor::linspace(0, 1e19, 2, Dtype::kInt64); }),
            "linspace: int64 needs whole numbers in its range, got 1e+19");
  EXPECT_EQ(message_of<ValueError>([] { Tensor::of(1e19, Dtype::kInt64); }),
            "Tensor::of: int64 needs whole numbers in its range, got 1e+19");
  EXPECT_EQ(message_of<ValueError>([] { Tensor::full({1}, 2, Dtype::kBool); }),
            "full: bool needs true and false, got 2");
  EXPECT_EQ(message_of<ValueError>([] {
              Tensor::randperm(-1, {1, "x"});
            }),
            "randperm: n must not be negative, got -1");
  EXPECT_EQ(integers(Tensor::arange(0.0, 3.0, 1.0, Dtype::kInt64)), (Integers{0, 1, 2}));
}

TEST(Make, ConvertsNoRealThatIsFarFromEveryInteger) {
  for (const double value : {std::numeric_limits<double>::quiet_NaN(), 1e30, -1e30, 0x1p63}) {
    const Tensor real = Tensor::full({2}, value, Dtype::kFloat64);
    EXPECT_THROW(to_dtype(real, Dtype::kInt64), ValueError) << value;
    EXPECT_THROW(to_dtype(to_dtype(real, Dtype::kFloat32), Dtype::kInt64), ValueError) << value;
    Tensor whole = Tensor::zeros({2}, Dtype::kInt64);
    EXPECT_THROW(copy_(whole, real), ValueError) << value;
    EXPECT_THROW(fill_(whole, value), ValueError) << value;
  }
  EXPECT_EQ(message_of<ValueError>(
                [] { to_dtype(Tensor::full({1}, 1e30, Dtype::kFloat64), Dtype::kInt64); }),
            "conversion: int64 holds numbers in [-2^63, 2^63), got 1e+30");
  EXPECT_EQ(integers(to_dtype(Tensor::of({-1.5, 1.5, -0x1p63}, Dtype::kFloat64), Dtype::kInt64)),
            (Integers{-1, 1, std::numeric_limits<std::int64_t>::min()}));
}

TEST(Make, ConvertsToInt32AndInt8WhatTheyHold) {
  for (const auto& [dtype, end, range] :
       {std::tuple{Dtype::kInt8, 0x1p7, "int8 holds numbers in [-2^7, 2^7), got "},
        std::tuple{Dtype::kInt32, 0x1p31, "int32 holds numbers in [-2^31, 2^31), got "}}) {
    const Tensor held = Tensor::of({-end, -1.5, 0, 1.5, end - 1}, Dtype::kFloat64);
    const auto most = static_cast<std::int64_t>(end) - 1;
    const Tensor codes = to_dtype(held, dtype);
    EXPECT_EQ(codes.dtype(), dtype);
    EXPECT_EQ(integers(to_dtype(codes, Dtype::kInt64)), (Integers{-most - 1, -1, 0, 1, most}));
    EXPECT_EQ(codes.storage().bytes(), static_cast<std::size_t>(5 * size_of(dtype)));
    // A fraction is cut off first, so that less than one beyond the range still fits.
    EXPECT_EQ(to_dtype(Tensor::of(-end - 0.75, Dtype::kFloat64), dtype).item<std::int64_t>(),
              -most - 1);
    EXPECT_EQ(to_dtype(Tensor::of(end - 0.25, Dtype::kFloat64), dtype).item<std::int64_t>(), most);
    for (const double beyond : {end, -end - 1, std::numeric_limits<double>::quiet_NaN()}) {
      const Tensor real = Tensor::full({2}, beyond, Dtype::kFloat64);
      EXPECT_THAT(message_of<ValueError>([&, to = dtype] { to_dtype(real, to); }),
                  ::testing::HasSubstr(range));
      Tensor target = Tensor::zeros({2}, dtype);
      EXPECT_THROW(fill_(target, beyond), ValueError);
      EXPECT_THROW(Tensor::of({beyond}, dtype), ValueError);
    }
    const Tensor wide = Tensor::of({-end - 1}, Dtype::kInt64);
    EXPECT_THROW(to_dtype(wide, dtype), ValueError);
    EXPECT_THROW(Tensor::arange(most + 1, most + 3, 1, dtype), ValueError);
    EXPECT_TRUE(bitwise_equal(clone(codes), codes));
    EXPECT_THROW(clone(codes).set_requires_grad(true), DtypeError);
  }
  EXPECT_EQ(
      message_of<ValueError>([] { to_dtype(Tensor::of({300}, Dtype::kInt32), Dtype::kInt8); }),
      "conversion: int8 holds numbers in [-2^7, 2^7), got 300");
  EXPECT_EQ(message_of<ValueError>([] { Tensor::of({0.5}, Dtype::kInt8); }),
            "Tensor::of: int8 needs whole numbers in its range, got 0.5");
  const Tensor truth = to_dtype(Tensor::of({-1, 0}, Dtype::kInt8), Dtype::kBool);
  EXPECT_TRUE(bitwise_equal(truth, Tensor::of({true, false}, Dtype::kBool)));
  EXPECT_EQ(integers(to_dtype(to_dtype(truth, Dtype::kInt32), Dtype::kInt64)), (Integers{1, 0}));
}

TEST(MakeLinspace, ReachesFromOneEndToTheOther) {
  EXPECT_EQ(doubles(Tensor::linspace(-1e308, 1e308, 3, Dtype::kFloat64)),
            (Doubles{-1e308, 0, 1e308}));
  EXPECT_EQ(message_of<ValueError>(
                [] { Tensor::linspace(0, std::numeric_limits<double>::infinity(), 3); }),
            "linspace: start and end must be finite, got 0 and inf");
}

}  // namespace
}  // namespace moegrad::make_test
