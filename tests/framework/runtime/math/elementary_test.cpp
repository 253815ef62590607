// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/math/elementary.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <future>
#include <limits>
#include <random>
#include <vector>

#include "framework/runtime/math/double_double.h"
#include "tests/testing.h"

namespace moegrad::elementary_test {
namespace {

using math::DoubleDouble;

template <class T>
constexpr T kInfinity = std::numeric_limits<T>::infinity();
template <class T>
constexpr T kNaN = std::numeric_limits<T>::quiet_NaN();

// The reference is the standard library's long double: on x86 it has 11 bits more than double.
struct Function {
  const char* name;
  float (*of_float)(float);
  double (*of_double)(double);
  long double (*reference)(long double);
  double low, high;   // where most is to be seen
  float least, most;  // magnitudes of floats, outside of which the result is simple
};

constexpr float kMost = std::numeric_limits<float>::max();
constexpr Function kFunctions[] = {
    {"exp", math::exp, math::exp, std::exp, -760.0, 720.0, 1e-8F, 105.0F},
    {"log", math::log, math::log, std::log, 0.0, 4.0, 0.0F, kMost},
    {"log1p", math::log1p, math::log1p, std::log1p, -1.0, 2.0, 1e-8F, kMost},
    {"sin", math::sin, math::sin, std::sin, -300'000.0, 300'000.0, 1e-4F, kMost},
    {"cos", math::cos, math::cos, std::cos, -20.0, 20.0, 1e-4F, kMost},
    {"tanh", math::tanh, math::tanh, std::tanh, -21.0, 21.0, 1e-4F, 11.0F},
    {"erf", math::erf, math::erf, std::erf, -6.5, 6.5, 1e-10F, 5.0F},
    {"erfc", nullptr, math::erfc, std::erfc, -6.5, 28.0, 0.0F, 0.0F},
};

// An error of the reference, in parts of the value.
constexpr long double kUnsure = 4.0L * std::numeric_limits<long double>::epsilon();

template <class T>
bool same(T a, T b) {
  return a == b ? std::signbit(a) == std::signbit(b) : std::isnan(a) && std::isnan(b);
}

struct Count {
  std::int64_t wrong = 0, undecided = 0;
  float example = 0.0F;
};

// Looks at every `few`th float where the function is simple, and at every `many`th elsewhere.
Count count(const Function& f, std::uint64_t begin, std::uint64_t end, std::uint64_t few,
            std::uint64_t many) {
  Count found;
  for (std::uint64_t bits = begin; bits < end;) {
    const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    bits += std::abs(x) >= f.least && std::abs(x) <= f.most ? many : few;
    const float got = f.of_float(x);
    const long double expected = f.reference(x);
    if (same(got, static_cast<float>(expected))) continue;
    if (same(got, static_cast<float>(expected * (1.0L - kUnsure))) ||
        same(got, static_cast<float>(expected * (1.0L + kUnsure)))) {
      ++found.undecided;
    } else {
      ++found.wrong;
      found.example = x;
    }
  }
  return found;
}

TEST(ElementaryFunctions, OfFloatAreTheNearestFloats) {
  constexpr std::uint64_t kPieces = 16, kPiece = (1ULL << 32U) / kPieces;
  const std::uint64_t few = test::kSanitized ? 40'009 : 4'001;
  const std::uint64_t many = test::full_suite() ? 1 : few;
  for (const auto& f : kFunctions) {
    if (f.of_float == nullptr) continue;
    std::vector<std::future<Count>> counts;
    for (std::uint64_t i = 0; i < kPieces; ++i) {
      counts.push_back(std::async(test::full_suite() ? std::launch::async : std::launch::deferred,
                                  count, f, i * kPiece, (i + 1) * kPiece, few, many));
    }
    std::int64_t undecided = 0;
    for (auto& each : counts) {
      const auto found = each.get();
      EXPECT_EQ(found.wrong, 0) << f.name << " of " << std::hexfloat << found.example << " is "
                                << f.of_float(found.example);
      undecided += found.undecided;
    }
    EXPECT_LE(undecided, 100) << f.name;
  }
}

// A number of any exponent, a small one, and one of the range that the function is about.
double sample(const Function& f, std::mt19937_64& random, int kind) {
  const auto bits = random();
  const double unit = static_cast<double>(bits >> 11U) * 0x1p-53;
  if (kind == 0) return std::bit_cast<double>(bits);
  if (kind == 1) return std::ldexp(unit - 0.5, static_cast<int>(random() % 64) - 56);
  if (kind == 2) return 1.0 + std::ldexp(unit - 0.5, -static_cast<int>(random() % 48));
  return f.low + unit * (f.high - f.low);
}

TEST(ElementaryFunctions, OfDoubleAreWithinHalfAUnitOfTheLastPlace) {
  const int count = test::full_suite() ? 10'000'000 : test::kSanitized ? 20'000 : 200'000;
  for (const auto& f : kFunctions) {
    std::mt19937_64 random(1);
    std::int64_t wrong = 0;
    double example = 0.0;
    for (int i = 0; i < count; ++i) {
      const double x = sample(f, random, i % 4), got = f.of_double(x);
      const long double expected = f.reference(x);
      const auto rounded = static_cast<double>(expected);
      if (same(got, rounded)) continue;
      const double size = std::abs(rounded);
      const double place = std::nextafter(size, kInfinity<double>) - size;
      const long double error = std::abs(static_cast<long double>(got) - expected);
      if (error <= 0.5L * place + kUnsure * std::abs(expected)) continue;
      ++wrong;
      example = x;
    }
    EXPECT_EQ(wrong, 0) << f.name << " of " << std::hexfloat << example << " is "
                        << f.of_double(example);
  }
}

struct Case {
  double (*function)(double);
  double x, expected;
};

// The exact values lie within 2^-105 of halfway between two doubles, or come from arguments close
// to a multiple of pi / 2. The expected bits were computed with 1500 bits.
TEST(ElementaryFunctions, OfDoubleRoundHardCasesToTheNearest) {
  constexpr Case kCases[] = {
      {math::exp, 0x1p-53, 0x1.0000000000001p0},
      {math::exp, 0x1.9e9cbbfd6080bp-31, 0x1.000000033d398p0},
      {math::log, 0x1.ffffffffffffep-1, -0x1.0000000000001p-52},
      {math::log1p, -0x1p-52, -0x1.0000000000001p-52},
      {math::log1p, 0x1p-53, 0x1p-53},
      {math::sin, 0x1.598bae9e632f6p-7, 0x1.598a0aea48996p-7},
      {math::sin, 0x1.6ac5b262ca1ffp849, 0x1p0},
      {math::cos, 0x1.6ac5b262ca1ffp849, -0x1.14ae72e6ba22fp-61},
      {math::sin, 0x1.921fb54442d18p1, 0x1.1a62633145c07p-53},
      {math::cos, 0x1.921fb54442d18p0, 0x1.1a62633145c07p-54},
  };
  for (const auto& [function, x, expected] : kCases) {
    EXPECT_EQ(function(x), expected) << std::hexfloat << x << " gives " << function(x);
  }
}

// The quick phase alone would give a neighbour of these, and an error bound that is eight times
// smaller would trust it. The expected bits were computed with 400 bits.
TEST(ElementaryFunctions, TakeTheAccuratePhaseWhereTheQuickOneIsUnsure) {
  constexpr Case kCases[] = {
      {math::exp, 0x1.1998a6a81af36p+2, 0x1.45c8dbcdf3e19p+6},
      {math::exp, 0x1.3db2bbe3fa9ep+1, 0x1.7ee4593b5724fp+3},
      {math::log, 0x1.ff52e0494c868p-1, -0x1.5a7a048ce2c17p-10},
      {math::log, 0x1.019771633b92cp+0, 0x1.962e7ccd51969p-8},
      {math::log1p, 0x1.ca7569fedf98p-8, 0x1.c8dccd6381a4bp-8},
      {math::log1p, -0x1.7c4f6a13f8p-9, -0x1.7cdcef23ac613p-9},
      // Here there is no quick phase, and the terms that are summed in double are few.
      {math::erf, 0x1.e92f7b2e43804p-2, 0x1.005c512b3710cp-1},
      {math::erf, -0x1.d6d42d8087d56p-2, -0x1.f018210b50ed6p-2},
      {math::erfc, 0x1.704f2ab41239p+2, 0x1.cd2bccffd1812p-52},
      {math::erfc, 0x1.3f974c6ebaa9fp+2, 0x1.cddd435adb68ap-40},
  };
  for (const auto& [function, x, expected] : kCases) {
    EXPECT_EQ(function(x), expected) << std::hexfloat << x << " gives " << function(x);
  }
  EXPECT_EQ(math::tanh(0x1.78c0cap-10F), 0x1.78c0bap-10F);
  EXPECT_EQ(math::tanh(0x1.86fbc4p-10F), 0x1.86fbb2p-10F);
  EXPECT_EQ(math::tanh(0x1.f93eaep-10F), 0x1.f93e86p-10F);
}

template <class T>
struct Special {
  const char* name;
  T (*function)(T);
  T x, expected;
};

template <class T>
std::vector<Special<T>> specials() {
  constexpr T inf = kInfinity<T>, nan = kNaN<T>, zero = 0, one = 1;
  constexpr T least = std::numeric_limits<T>::denorm_min(), most = std::numeric_limits<T>::max();
  return {{"exp", math::exp, zero, one},        {"exp", math::exp, -zero, one},
          {"exp", math::exp, inf, inf},         {"exp", math::exp, -inf, zero},
          {"exp", math::exp, most, inf},        {"exp", math::exp, -most, zero},
          {"exp", math::exp, least, one},       {"exp", math::exp, nan, nan},
          {"log", math::log, one, zero},        {"log", math::log, zero, -inf},
          {"log", math::log, -zero, -inf},      {"log", math::log, inf, inf},
          {"log", math::log, -least, nan},      {"log", math::log, -inf, nan},
          {"log", math::log, nan, nan},         {"log1p", math::log1p, zero, zero},
          {"log1p", math::log1p, -zero, -zero}, {"log1p", math::log1p, -one, -inf},
          {"log1p", math::log1p, inf, inf},     {"log1p", math::log1p, T{-2}, nan},
          {"log1p", math::log1p, least, least}, {"log1p", math::log1p, -least, -least},
          {"log1p", math::log1p, -inf, nan},    {"log1p", math::log1p, nan, nan},
          {"sin", math::sin, zero, zero},       {"sin", math::sin, -zero, -zero},
          {"sin", math::sin, least, least},     {"sin", math::sin, inf, nan},
          {"sin", math::sin, -inf, nan},        {"sin", math::sin, nan, nan},
          {"cos", math::cos, zero, one},        {"cos", math::cos, -zero, one},
          {"cos", math::cos, least, one},       {"cos", math::cos, inf, nan},
          {"cos", math::cos, -inf, nan},        {"cos", math::cos, nan, nan},
          {"tanh", math::tanh, zero, zero},     {"tanh", math::tanh, -zero, -zero},
          {"tanh", math::tanh, least, least},   {"tanh", math::tanh, inf, one},
          {"tanh", math::tanh, -inf, -one},     {"tanh", math::tanh, nan, nan},
          {"erf", math::erf, zero, zero},       {"erf", math::erf, -zero, -zero},
          {"erf", math::erf, least, least},     {"erf", math::erf, inf, one},
          {"erf", math::erf, -inf, -one},       {"erf", math::erf, nan, nan}};
}

template <class T>
void expect_specials(const std::vector<Special<T>>& cases) {
  for (const auto& [name, function, x, expected] : cases) {
    EXPECT_TRUE(same(function(x), expected)) << name << '(' << x << ") is " << function(x);
    EXPECT_FALSE(std::isnan(expected) && std::signbit(function(x))) << name << '(' << x << ')';
  }
}

TEST(ElementaryFunctions, OfSpecialValuesAreThoseOfTheStandard) {
  expect_specials(specials<float>());
  expect_specials(specials<double>());
  expect_specials<double>({{"erfc", math::erfc, 0.0, 1.0},
                           {"erfc", math::erfc, kInfinity<double>, 0.0},
                           {"erfc", math::erfc, -kInfinity<double>, 2.0},
                           {"erfc", math::erfc, kNaN<double>, kNaN<double>}});
}

TEST(ElementaryFunctions, KeepTheEdgesOfTheRange) {
  EXPECT_EQ(math::exp(0x1.62e42ep6F), 0x1.ffff08p127F);
  EXPECT_EQ(math::exp(0x1.62e430p6F), kInfinity<float>);
  EXPECT_EQ(math::exp(-0x1.9fe368p6F), 0x1p-149F);
  EXPECT_EQ(math::exp(-0x1.9fe36ap6F), 0.0F);
  EXPECT_LT(math::exp(0x1.62e42fefa39efp9), kInfinity<double>);
  EXPECT_EQ(math::exp(0x1.62e42fefa39f0p9), kInfinity<double>);
  EXPECT_EQ(math::exp(-0x1.74910d52d3051p9), 0x1p-1074);
  EXPECT_EQ(math::exp(-0x1.74910d52d3052p9), 0.0);
  EXPECT_EQ(math::erfc(27.226017111108362), 0x1p-1074);
  EXPECT_EQ(math::erfc(27.226017111108369), 0.0);
}

// What the compiler sums into tables has the bits of the CPU, with an fma and without.
TEST(DoubleDouble, HasTheSameBitsInTheCompiler) {
  constexpr auto value = [](int i) {
    const auto x = DoubleDouble{1.0} / (2.0 * i + 3.0);
    return (x * x + x) / (x + -1.0) * (i * 0x1.23456789abcdep-3);
  };
  constexpr auto constants = math::table<200>(value);
  volatile int zero = 0;
  for (int i = 0; i < 200; ++i) {
    const auto now = value(i + zero);
    EXPECT_EQ(now.high, constants[static_cast<std::size_t>(i)].high) << i;
    EXPECT_EQ(now.low, constants[static_cast<std::size_t>(i)].low) << i;
  }
}

}  // namespace
}  // namespace moegrad::elementary_test
