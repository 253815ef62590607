// SPDX-License-Identifier: Apache-2.0
// sin and cos. With x = k pi / 256 + r and |r| <= pi / 512,
//
//     sin x = sin(k pi / 256) cos r + cos(k pi / 256) sin r
//     cos x = cos(k pi / 256) cos r - sin(k pi / 256) sin r
//
// where the sines of multiples of pi / 256 are a table, and those of r short series. r is x less k
// times pi / 256 in three parts where that is enough. For larger x, and in the accurate phase, it
// is the fraction of x times 256 / pi, from the bits of 1 / pi that x does not make whole turns.
// See Note [Elementary functions].
//
// Method: S. Gal, "Computing elementary functions: a new approach for achieving high accuracy and
// good performance", 1986; M. Payne, R. Hanek, "Radian reduction for trigonometric functions",
// 1983.
#include "framework/runtime/math/double_double.h"
#include "framework/runtime/math/elementary.h"

namespace moegrad::math {
namespace {

__extension__ using Uint128 = unsigned __int128;

constexpr DoubleDouble kPi = {0x1.921fb54442d18p1, 0x1.1a62633145c07p-53};
constexpr double kStepsPerRadian = 0x1.45f306dc9c883p6;  // 256 / pi

// The parts of pi / 256: 29 bits each of the first two, so that k < 2^24 times them is exact.
constexpr double kAngle0 = 0x1.921fb54p-7;
constexpr double kAngle1 = 0x1.10b4611p-37;
constexpr double kAngle2 = 0x1.4c4c6628b80dcp-66;
constexpr int kQuarter = 128;
constexpr double kLargestQuick = 200'000.0;  // k < 2^24

// The first 1344 bits of 1 / (2 pi), after 64 bits of 0.
constexpr std::uint64_t kTurns[] = {
    0x0000000000000000, 0x28be60db9391054a, 0x7f09d5f47d4d3770, 0x36d8a5664f10e410,
    0x7f9458eaf7aef158, 0x6dc91b8e909374b8, 0x01924bba82746487, 0x3f877ac72c4a69cf,
    0xba208d7d4baed121, 0x3a671c09ad17df90, 0x4e64758e60d4ce7d, 0x272117e2ef7e4a0e,
    0xc7fe25fff7816603, 0xfbcbc462d6829b47, 0xdb4d9fb3c9f2c26d, 0xd3d18fd9a797fa8b,
    0x5d49eeb1faf97c5e, 0xcf41ce7de294a4ba, 0x9afed7ec47e35742, 0x1580cc11bf1edaea,
    0xfc33ef0826bd0d87, 0x6a78e45857b986c2};

// (-1)^n / (2n)! and (-1)^n / (2n + 1)!, of cos r and sin(r) / r in powers of r^2.
template <std::size_t N>
constexpr auto series(int first) {
  return table<N>([=](int n) {
    DoubleDouble factor = {n % 2 == 0 ? 1.0 : -1.0};
    for (int i = 2; i <= 2 * n + first; ++i) factor = factor / i;
    return factor;
  });
}
constexpr auto kCosSeries = series<8>(0), kSinSeries = series<8>(1);
constexpr auto kTableSeries = series<18>(1);
constexpr double kCos2 = kCosSeries[2].high, kCos3 = kCosSeries[3].high;
constexpr double kSin1 = kSinSeries[1].high, kSin2 = kSinSeries[2].high, kSin3 = kSinSeries[3].high;

// sin(k pi / 256): a whole turn, where the first quarter is computed.
constexpr auto kSines = [] {
  std::array<DoubleDouble, 512> sines{};
  for (std::size_t k = 0; k <= 128; ++k) {
    const auto angle = kPi * (static_cast<double>(k) / 256.0);
    const auto sine = polynomial(kTableSeries, angle * angle) * angle;
    sines[k] = sines[256 - k] = sine;
    if (k > 0) sines[256 + k] = sines[512 - k] = -sine;
  }
  return sines;
}();

// x = (steps + 512 n) pi / 256 + r
struct Angle {
  std::int64_t steps;
  DoubleDouble r;
};

Angle angle_quick(double x) {
  const double k = nearest_integer(x * kStepsPerRadian);
  const auto rest = two_sum(x - k * kAngle0, -k * kAngle1);
  return {static_cast<std::int64_t>(k), fast_two_sum(rest.high, rest.low - k * kAngle2)};
}

// x / (2 pi) without its whole turns: 256 bits of 1 / (2 pi), from the first that times x is less
// than a turn, times the 53 bits of x.
Angle angle_accurate(double x) {
  if (std::abs(x) < 0x1p-8) return {0, {x}};
  const auto bits = std::bit_cast<std::uint64_t>(std::abs(x));
  const auto significand = (bits & ((1ULL << 52U) - 1)) | 1ULL << 52U;
  const auto first = static_cast<std::size_t>((bits >> 52U) + 64 - 1075), shift = first % 64;
  std::array<std::uint64_t, 4> turns{};  // the highest bits first
  Uint128 sum = 0;
  for (auto i = turns.size(); i-- > 0;) {
    const auto* const word = kTurns + first / 64 + i;
    const auto window = shift == 0 ? word[0] : word[0] << shift | word[1] >> (64 - shift);
    sum = static_cast<Uint128>(window) * significand + (sum >> 64U);
    turns[i] = static_cast<std::uint64_t>(sum);
  }
  const auto steps = (turns[0] + (1ULL << 54U)) >> 55U;  // rounded; 512 are a turn
  turns[0] -= steps << 55U;
  // What is left of a step: the highest bit is its sign.
  DoubleDouble rest = {static_cast<double>(static_cast<std::int64_t>(turns[0]) >> 32) * 0x1p-23};
  rest = rest + static_cast<double>(turns[0] & 0xffffffffU) * 0x1p-55;
  for (std::size_t i = 1; i < turns.size(); ++i) {
    const double scale = power_of_two(-55 - 64 * static_cast<std::int64_t>(i));
    rest = rest + static_cast<double>(turns[i] >> 32U) * 0x1p32 * scale;
    rest = rest + static_cast<double>(turns[i] & 0xffffffffU) * scale;
  }
  const auto r = rest * (kPi * 0x1p-8);
  if (x < 0.0) return {-static_cast<std::int64_t>(steps), -r};
  return {static_cast<std::int64_t>(steps), r};
}

// sin(k pi / 256) and its cosine
struct Factors {
  const DoubleDouble &sin, &cos;

  explicit Factors(std::int64_t k)
      : sin(kSines[static_cast<std::size_t>(k & 511)]),
        cos(kSines[static_cast<std::size_t>((k + kQuarter) & 511)]) {}
};

Angle angle_of(double x) {
  return std::abs(x) < kLargestQuick ? angle_quick(x) : angle_accurate(x);
}

// sin(x + turn pi / 256), as the two below.
DoubleDouble sin_accurate(double x, int turn) {
  const auto [steps, r] = angle_accurate(x);
  const Factors of(steps + turn);
  const auto square = r * r;
  return of.sin * polynomial(kCosSeries, square, 4) +
         of.cos * (polynomial(kSinSeries, square, 4) * r);
}

// The error is that of the last bits of r^2 / 2 < 2^-15 beside 1, and that of a small r.
double sin_of(double x, int turn) {
  const auto [steps, r] = angle_of(x);
  const Factors of(steps + turn);
  const double h = r.high, square = h * h;
  const double cos_less_one = square * (-0.5 + square * (kCos2 + square * kCos3));
  const double sin_less_r = square * h * (kSin1 + square * (kSin2 + square * kSin3));
  const auto product = two_product(of.cos.high, h);
  auto value = fast_two_sum(of.sin.high, product.high);
  value.low += product.low + (of.sin.low + (of.cos.low * h + of.cos.high * r.low)) +
               (of.sin.high * cos_less_one + of.cos.high * sin_less_r);
  if (rounds_surely(value, 0x1p-65 * std::abs(value.high) + 0x1p-90)) return value.high + value.low;
  return sin_accurate(x, turn).high;
}

float sin_of(float x, int turn) {
  const auto [steps, r] = angle_of(x);
  const Factors of(steps + turn);
  const double h = r.high, square = h * h;
  const double cos = 1.0 + square * (-0.5 + square * kCos2);
  const double sin = h + square * h * (kSin1 + square * kSin2);
  const double value = of.sin.high * cos + of.cos.high * sin;
  if (rounds_surely(value, 0x1p-46 * value)) return static_cast<float>(value);
  return round_to_float({.value = sin_accurate(x, turn)});
}

}  // namespace

float sin(float x) {
  if (!(std::abs(x) < kInfinity<float>)) return kNaN<float>;
  return std::abs(x) < 0x1p-12F ? x : sin_of(x, 0);  // x - x^3 / 6 + ...
}

double sin(double x) {
  if (!(std::abs(x) < kInfinity<double>)) return kNaN<double>;
  return std::abs(x) < 0x1p-26 ? x : sin_of(x, 0);
}

float cos(float x) { return std::abs(x) < kInfinity<float> ? sin_of(x, kQuarter) : kNaN<float>; }

double cos(double x) {
  return std::abs(x) < kInfinity<double> ? sin_of(x, kQuarter) : kNaN<double>;
}

}  // namespace moegrad::math
