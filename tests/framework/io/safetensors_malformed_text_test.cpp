// SPDX-License-Identifier: Apache-2.0
// Files that are refused for their frame or for their header's text. Most stem from the reference
// implementation's tests and from errors that were found in other readers.
#include <gtest/gtest.h>

#include <vector>

#include "tests/framework/io/malformed_case.h"

namespace moegrad::safetensors_malformed_text_test {
namespace {

using Kind = SafetensorsError::Kind;
using namespace test;

/// A string of `count` times `text`.
std::string repeat(std::string_view text, int count) {
  std::string result;
  for (int i = 0; i < count; ++i) result += text;
  return result;
}

std::vector<MalformedCase> frames() {
  const std::string header =
      R"({"test":{"dtype":"I32","shape":[2,2],"data_offsets":[0,16]}})";  // 60 bytes
  return {
      {"EmptyFile", "", Kind::kFileTooShort, "file must have at least 8 bytes, got 0"},
      {"SevenBytes", std::string(7, '\0'), Kind::kFileTooShort,
       "file must have at least 8 bytes, got 7"},
      {"NothingAfterLength", little_endian(60), Kind::kHeaderPastEnd,
       "header must end within the 0 bytes after its length, got 60"},
      {"LengthBeyondSmallFile", little_endian(1000) + header, Kind::kHeaderPastEnd,
       "header must end within the 60 bytes after its length, got 1000"},
      {"LengthOneAboveLimit", little_endian(100'000'001) + header, Kind::kHeaderTooLong,
       "header must have at most 100000000 bytes, got 100000001"},
      {"LengthAtLimit", little_endian(100'000'000) + header, Kind::kHeaderPastEnd,
       "header must end within the 60 bytes after its length, got 100000000"},
      {"HugeLength", little_endian(0xffffff000000003c) + header, Kind::kHeaderTooLong,
       "header must have at most 100000000 bytes, got 18446742974197923900"},
      {"LengthThatWrapsToZero", little_endian(0xfffffffffffffff8) + header, Kind::kHeaderTooLong,
       "header must have at most 100000000 bytes, got 18446744073709551608"},
      {"LengthZero", little_endian(0), Kind::kInvalidJson,
       "header must have a value at 0, got the end of the header"},
      {"BytesAfterData", safetensors_bytes(header, 16) + "extra_bogus_data_for_polyglot_file",
       Kind::kDataLeftOver, "data must have the 16 bytes of its tensors, got 50"},
      {"BytesAfterEmptyHeader", safetensors_bytes("{}", 1), Kind::kDataLeftOver,
       "data must have the 0 bytes of its tensors, got 1"},
      {"TwoBytesMissing", safetensors_bytes(header, 14), Kind::kDataMissing,
       "data must have the 16 bytes of its tensors, got 14"},
  };
}

std::vector<MalformedCase> texts() {
  const auto json = [](std::string_view text) { return safetensors_bytes(text); };
  using namespace std::string_literals;
  return {
      {"OnlyABrace", json("{"), Kind::kInvalidJson,
       "header must have a key in quotes at 1, got the end of the header"},
      {"OnlySpaces", json("   "), Kind::kInvalidJson,
       "header must have a value at 3, got the end of the header"},
      {"NotUtf8", json("\xff"), Kind::kInvalidUtf8, "header must be UTF-8, got byte 255 at 0"},
      {"OverlongUtf8", json("{\"\xc0\xaf\":1}"), Kind::kInvalidUtf8,
       "header must be UTF-8, got byte 192 at 2"},
      {"SurrogateInUtf8", json("{\"\xed\xa0\x80\":1}"), Kind::kInvalidUtf8,
       "header must be UTF-8, got byte 237 at 2"},
      {"CutUtf8", json("{\"\xe2\x82"), Kind::kInvalidUtf8,
       "header must be UTF-8, got byte 226 at 2"},
      {"ByteOrderMark", json("\xef\xbb\xbf{}"), Kind::kByteOrderMark,
       "header must start with '{', got a byte order mark"},
      {"NulAfterObject", json("{}\0\0"s), Kind::kNulCharacter,
       "header must hold no NUL, got one at 2"},
      {"NulInName", json("{\"a\0b\":1}"s), Kind::kNulCharacter,
       "header must hold no NUL, got one at 3"},
      {"EscapedNulInName", json(R"({"a\u0000":1})"), Kind::kNulCharacter,
       "header must hold no NUL, got one at 3"},
      {"HighSurrogateAlone", json(R"({"\ud800":1})"), Kind::kLoneSurrogate,
       R"(header must have surrogates in pairs, got '\ud800' alone at 2)"},
      {"HighSurrogateBeforeAnotherCharacter", json(R"({"\ud800\u0041":1})"), Kind::kLoneSurrogate,
       R"(header must have surrogates in pairs, got '\ud800' alone at 2)"},
      {"HighSurrogateTwice", json(R"({"\uDBFF\uDBFF":1})"), Kind::kLoneSurrogate,
       R"(header must have surrogates in pairs, got '\uDBFF' alone at 2)"},
      {"LowSurrogateFirst", json(R"({"\udc00\ud800":1})"), Kind::kLoneSurrogate,
       R"(header must have surrogates in pairs, got '\udc00' alone at 2)"},
      {"UnknownEscape", json(R"({"\x41":1})"), Kind::kInvalidJson,
       R"(header must have an escape sequence of JSON at 2, got '\x')"},
      {"ThreeHexadecimalDigits", json(R"({"\u004":1})"), Kind::kInvalidJson,
       R"(header must have four hexadecimal digits at 4, got '004"')"},
      {"ControlCharacterInName", json("{\"a\nb\":1}"), Kind::kInvalidJson,
       "header must escape control characters, got byte 10 at 3"},
      {"NameWithoutEnd", json(R"({"abc)"), Kind::kInvalidJson,
       "header must close the string that starts at 1, got the end of the header"},
      {"NameEndingInBackslash", json(R"({"abc\)"), Kind::kInvalidJson,
       "header must close the string that starts at 1, got the end of the header"},
      {"NameInSingleQuotes", json("{'a':1}"), Kind::kInvalidJson,
       R"(header must have a key in quotes at 1, got ''a'')"},
      {"NameWithoutQuotes", json("{a:1}"), Kind::kInvalidJson,
       "header must have a key in quotes at 1, got 'a'"},
      {"NoColon", json(R"({"a" {}})"), Kind::kInvalidJson, "header must have ':' at 5, got '{'"},
      {"NoValue", json(R"({"a":})"), Kind::kInvalidJson, "header must have a value at 5, got '}'"},
      {"CommaAfterLastTensor", json(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},})"),
       Kind::kInvalidJson, "header must have a key in quotes at 53, got '}'"},
      {"CommaAfterLastDimension", json(R"({"a":{"dtype":"U8","shape":[0,],"data_offsets":[0,0]}})"),
       Kind::kInvalidJson, "header must have a value at 30, got ']'"},
      {"NoCommaBetweenTensors", json(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}"b")"),
       Kind::kInvalidJson, R"(header must have '}' at 52, got '"b"')"},
      {"Comment", json("{/**/}"), Kind::kInvalidJson,
       "header must have a key in quotes at 1, got '/**/'"},
      {"TopLevelArray", json("[]"), Kind::kHeaderNotObject, "header must be an object, got '['"},
      {"TopLevelNull", json("null"), Kind::kHeaderNotObject,
       "header must be an object, got 'null'"},
      {"TopLevelNumber", json("-1.5e3"), Kind::kHeaderNotObject,
       "header must be an object, got '-1.5e3'"},
      {"TopLevelString", json(R"("{}")"), Kind::kHeaderNotObject,
       R"(header must be an object, got '"{}"')"},
      {"TopLevelWord", json("hello"), Kind::kInvalidJson,
       "header must have a value at 0, got 'hello'"},
      {"SecondObject", json("{} {}"), Kind::kTextAfterHeader,
       "header must end after its object, got '{'"},
      {"GarbageAfterObject", json("{}garbage that goes on and on"), Kind::kTextAfterHeader,
       "header must end after its object, got 'garbage'"},
      {"MillionArrays", json(repeat("[", 1'000'000)), Kind::kHeaderNotObject,
       "header must be an object, got '['"},
      {"MillionObjects", json(repeat(R"({"":)", 1'000'000)), Kind::kTooDeep,
       "fields must be at most 120 levels deep, got more"},
  };
}

class MalformedText : public ::testing::TestWithParam<MalformedCase> {};

TEST_P(MalformedText, IsRefusedWithItsKindAndMessage) { test::expect_refused(GetParam()); }

const auto case_name = [](const auto& info) { return info.param.name; };
INSTANTIATE_TEST_SUITE_P(Frame, MalformedText, ::testing::ValuesIn(frames()), case_name);
INSTANTIATE_TEST_SUITE_P(Text, MalformedText, ::testing::ValuesIn(texts()), case_name);

}  // namespace

}  // namespace moegrad::safetensors_malformed_text_test
