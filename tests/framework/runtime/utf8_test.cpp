// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/utf8.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace moegrad::utf8_test {
namespace {

/// The bytes that UTF-8 would give to any number below 2^21, whether it is a character or not.
std::string encode(std::uint32_t number, int length) {
  std::string bytes;
  for (int i = length - 1; i > 0; --i) {
    bytes.insert(bytes.begin(), static_cast<char>(0x80U | (number & 0x3fU)));
    number >>= 6;
  }
  const std::uint32_t leads[] = {0x00, 0xc0, 0xe0, 0xf0};
  return static_cast<char>(leads[length - 1] | number) + bytes;
}

TEST(Utf8, AcceptsExactlyTheCharacters) {
  const std::uint32_t limits[] = {0x80, 0x800, 0x10000, 0x200000};
  for (int length = 1; length <= 4; ++length) {
    for (std::uint32_t number = 0; number < limits[length - 1]; ++number) {
      const bool shortest = length == 1 || number >= limits[length - 2];
      const bool surrogate = 0xd800 <= number && number < 0xe000;
      const bool character = shortest && !surrogate && number < 0x110000;
      const auto bytes = encode(number, length);
      ASSERT_EQ(valid_utf8_prefix(bytes), character ? bytes.size() : 0) << number;
      if (!character) continue;
      std::string appended;
      append_utf8(appended, number);
      ASSERT_EQ(appended, bytes) << number;
    }
  }
}

TEST(Utf8, EndsThePrefixBeforeTheFirstWrongByte) {
  EXPECT_EQ(valid_utf8_prefix(""), 0U);
  EXPECT_EQ(valid_utf8_prefix("abc"), 3U);
  EXPECT_EQ(valid_utf8_prefix("a\u20ac\xe2\x82"), 4U);
  EXPECT_EQ(valid_utf8_prefix("a\xe2\x82z"), 1U);
  EXPECT_EQ(valid_utf8_prefix("ab\x80"), 2U);
  EXPECT_EQ(valid_utf8_prefix("\xf8\x88\x80\x80\x80"), 0U);
}

std::string printable(std::string_view text, bool more = false) {
  std::string shown;
  append_printable(shown, text, more);
  return shown;
}

TEST(Utf8, WhatIsPrintedHoldsNothingThatATerminalObeys) {
  EXPECT_EQ(printable("a\tb\nc \u20ac \U0001F600 \u00e9"), "a\tb\nc \u20ac \U0001F600 \u00e9");
  EXPECT_EQ(printable("\x1b[2J\r\x07\x7f"), "\\x1b[2J\\x0d\\x07\\x7f");
  EXPECT_EQ(printable("\u009b1m"), "\\xc2\\x9b1m");
  EXPECT_EQ(printable("\u202e\u2066\u200f\u2028"),
            "\\xe2\\x80\\xae\\xe2\\x81\\xa6\\xe2\\x80\\x8f\\xe2\\x80\\xa8");
  EXPECT_EQ(printable("\xff\xc0\x80z"), "\\xff\\xc0\\x80z");
  EXPECT_EQ(printable("\xe2\x82"), "\\xe2\\x82");
}

TEST(Utf8, ACharacterThatComesInPartsIsPrintedWhole) {
  for (const std::string text : {"\u20ac", "\U0001F600", "\u009b", "\xe2\x28", "\xf0\x9f\x41"}) {
    for (std::size_t cut = 0; cut <= text.size(); ++cut) {
      std::string shown, begun = text.substr(0, cut);
      begun.erase(0, append_printable(shown, begun, /*more=*/true));
      append_printable(shown, begun + text.substr(cut), /*more=*/false);
      EXPECT_EQ(shown, printable(text)) << cut;
    }
  }
}

TEST(Utf8, QuotesTextForMessagesOnOneLine) {
  EXPECT_EQ(in_quotes(""), "''");
  EXPECT_EQ(in_quotes("layers.0\n\x1b\x7f\u20ac"), "'layers.0\\x0a\\x1b\\x7f\u20ac'");
  EXPECT_EQ(in_quotes(std::string(60, 'x')), "'" + std::string(60, 'x') + "'");
  EXPECT_EQ(in_quotes(std::string(61, 'x')), "'" + std::string(60, 'x') + "...'");
  EXPECT_EQ(in_quotes(std::string(59, 'x') + "\u20ac"), "'" + std::string(59, 'x') + "...'");
}

}  // namespace
}  // namespace moegrad::utf8_test
