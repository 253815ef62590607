// SPDX-License-Identifier: Apache-2.0
#include "framework/tensor/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <sstream>

#include "framework/runtime/random.h"
#include "tests/testing.h"

namespace moegrad::dtype_test {
namespace {

using test::message_of;

float from_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }
std::uint16_t rounded(std::uint32_t bits) { return BFloat16(from_bits(bits)).bits; }

TEST(BFloat16, RoundsToNearest) {
  EXPECT_EQ(rounded(0x3f807fff), 0x3f80);
  EXPECT_EQ(rounded(0x3f808001), 0x3f81);
  EXPECT_EQ(rounded(0xbf808001), 0xbf81);
}

TEST(BFloat16, RoundsTiesToEven) {
  EXPECT_EQ(rounded(0x3f808000), 0x3f80);
  EXPECT_EQ(rounded(0x3f818000), 0x3f82);
  EXPECT_EQ(rounded(0xbf818000), 0xbf82);
  EXPECT_EQ(rounded(0x3fff8000), 0x4000);  // carries into the exponent
}

// A number just beside the middle of two, which float32 cannot tell from it.
TEST(BFloat16, RoundsDoublesOnce) {
  for (const double sign : {1.0, -1.0}) {
    for (const double scale : {1.0, 0x1p-133}) {  // also below the normal ones
      const auto at = [&](double x) {
        return static_cast<double>(BFloat16(sign * scale * x)) / (sign * scale);
      };
      EXPECT_EQ(at(1 + 0x1p-8 + 0x1p-40), scale == 1 ? 1 + 0x1p-7 : 1);
      EXPECT_EQ(at(1 + 0x1p-8 - 0x1p-40), 1);
      EXPECT_EQ(at(1 + 3 * 0x1p-8 - 0x1p-40), scale == 1 ? 1 + 0x1p-7 : 1);
      EXPECT_EQ(at(1 + 0x1p-8), 1);
      EXPECT_EQ(at(1.5 + 0x1p-40), scale == 1 ? 1.5 : 2);
      EXPECT_EQ(at(1.5 - 0x1p-40), scale == 1 ? 1.5 : 1);
    }
  }
  EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(std::nan("")))));
  EXPECT_EQ(BFloat16(HUGE_VAL).bits, 0x7f80);
}

TEST(BFloat16, KeepsSpecialValues) {
  EXPECT_EQ(rounded(0x00000000), 0x0000);
  EXPECT_EQ(rounded(0x80000000), 0x8000);
  EXPECT_EQ(rounded(0x7f800000), 0x7f80);
  EXPECT_EQ(rounded(0xff800000), 0xff80);
  EXPECT_EQ(BFloat16(std::numeric_limits<float>::max()).bits, 0x7f80);  // nearest is infinity
  EXPECT_EQ(rounded(0x7f7f7fff), 0x7f7f);                               // nearest is finite
  EXPECT_EQ(rounded(0x00000001), 0x0000);
  EXPECT_EQ(rounded(0x00018000), 0x0002);  // a subnormal tie
}

TEST(BFloat16, KeepsNaN) {
  for (const auto bits : {0x7f800001U, 0x7fc00000U, 0x7fffffffU, 0xff800001U, 0xffffffffU}) {
    EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(from_bits(bits))))) << std::hex << bits;
  }
}

TEST(BFloat16, IsANeighbourThatIsNotFartherThanTheOther) {
  const Random random(1, "bf16");
  for (std::uint64_t i = 0; i < 20000; ++i) {
    const auto bits = static_cast<std::uint32_t>(random.integer(i, 0x7f000000));
    const double value = from_bits(bits);
    const double below = from_bits(bits & 0xffff0000U);
    const double above = from_bits((bits & 0xffff0000U) + 0x10000U);
    const double got = static_cast<float>(BFloat16(from_bits(bits)));
    ASSERT_TRUE(got == below || got == above);
    const double other = got == below ? above : below;
    ASSERT_LE(std::abs(got - value), std::abs(other - value)) << std::hex << bits;
  }
}

TEST(BFloat16, EveryValueSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = from_bits(bits << 16);
    if (std::isnan(value)) continue;
    ASSERT_EQ(BFloat16(value).bits, bits);
  }
}

TEST(Dtype, KnowsSizesAndNames) {
  const auto printed = [](Dtype dtype) {
    std::ostringstream out;
    out << dtype;
    return out.str();
  };
  EXPECT_EQ(printed(Dtype::kFloat32), "float32");
  EXPECT_EQ(printed(Dtype::kFloat64), "float64");
  EXPECT_EQ(printed(Dtype::kBFloat16), "bfloat16");
  EXPECT_EQ(printed(Dtype::kInt64), "int64");
  EXPECT_EQ(size_of(Dtype::kFloat32), 4);
  EXPECT_EQ(size_of(Dtype::kFloat64), 8);
  EXPECT_EQ(size_of(Dtype::kBFloat16), 2);
  EXPECT_EQ(size_of(Dtype::kInt64), 8);
  EXPECT_FALSE(is_floating(Dtype::kBFloat16));
  EXPECT_TRUE(holds_reals(Dtype::kBFloat16));
  EXPECT_FALSE(is_floating(Dtype::kInt64));
}

TEST(Dtype, ArithmeticIsFloat32OrFloat64) {
  EXPECT_EQ(dispatch_floating(Dtype::kFloat32, []<class T>() { return sizeof(T); }), 4U);
  EXPECT_EQ(dispatch_floating(Dtype::kFloat64, []<class T>() { return sizeof(T); }), 8U);
  EXPECT_EQ(message_of<DtypeError>(
                [] { dispatch_floating(Dtype::kBFloat16, []<class T>() { return sizeof(T); }); }),
            "arithmetic needs float32 or float64, got bfloat16; convert it with ops::cast");
}

}  // namespace
}  // namespace moegrad::dtype_test
