// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/parse_number.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

#include "framework/runtime/error.h"
#include "tests/testing.h"

namespace moegrad::parse_number_test {
namespace {

using test::message_of;

TEST(ParseNumber, TakesWholeNumbersWithinTheBounds) {
  EXPECT_EQ(parse_number<int>("n", "1", {1, 8}), 1);
  EXPECT_EQ(parse_number<int>("n", "+8", {1, 8}), 8);
  EXPECT_EQ(parse_number<std::int64_t>("n", "-3", {-3, 0}), -3);
  constexpr auto kMost = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(parse_number<std::uint64_t>("n", "18446744073709551615", {0, kMost}), kMost);
  EXPECT_EQ(parse_number<double>("x", "2.5e-3", {0, 1}), 2.5e-3);
}

TEST(ParseNumber, RefusesEverythingElse) {
  for (const auto* text : {"", "two", "2x", " 2", "2 ", "0", "9", "1e0", "++1", "0x1", "2.0",
                           "99999999999999999999"}) {
    EXPECT_EQ(message_of<ValueError>([&] {
                parse_number<int>("RANKS", text, {1, 8});
              }),
              std::string("RANKS: must be an integer from 1 to 8, got ") + text);
  }
  for (const auto* text : {"nan", "inf", "-inf", "1.5", "-0.1", "0,5", "1e999"}) {
    EXPECT_EQ(message_of<ValueError>([&] {
                parse_number<double>("lr", text, {0, 1});
              }),
              std::string("lr: must be a number from 0 to 1, got ") + text);
  }
}

TEST(ToNumber, IsNoneForWhatADoubleCannotHold) {
  for (const auto* text : {"1e-400", "-1e-400", "1e400", "2e-324", "1x", ""}) {
    EXPECT_EQ(to_number<double>(text), std::nullopt) << text;
  }
  EXPECT_EQ(to_number<double>("5e-324"), std::numeric_limits<double>::denorm_min());
  EXPECT_EQ(to_number<double>("0e-400"), 0.0);
  EXPECT_EQ(to_number<double>("+1.5"), 1.5);
}

}  // namespace
}  // namespace moegrad::parse_number_test
