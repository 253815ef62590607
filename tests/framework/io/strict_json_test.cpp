// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "framework/io/json_node.h"
#include "framework/runtime/error.h"
#include "tests/testing.h"

namespace moegrad::strict_json_test {
namespace {

using nlohmann::json;

std::string refusal(std::string_view text, int max_depth = 3) {
  return test::message_of<ValueError>([&] { parse_strict_json(text, max_depth, "config.json"); });
}

TEST(StrictJson, ParsesWhatIsJson) {
  const std::string text = " {\"a\": [1, -2.5e3, true, null], \"b\": {\"a\": \"\\u00e9\u20ac\"}}\n";
  EXPECT_EQ(parse_strict_json(text, 2, "config.json"), json::parse(text));
  EXPECT_EQ(parse_strict_json("3", 0, "config.json"), 3);
  EXPECT_EQ(parse_strict_json(R"([{"a":1},{"a":1}])", 2, "config.json").size(), 2U);
}

TEST(StrictJson, RefusesDuplicateKeys) {
  EXPECT_EQ(refusal(R"({"a":1,"b":2,"a":1})"),
            "config.json: keys of an object must differ, got 'a' twice");
  EXPECT_EQ(refusal(R"({"x":[{"a":1,"\u0061":2}]})"),
            "config.json: keys of an object must differ, got 'a' twice");
  EXPECT_EQ(refusal(R"({"b":{"c":1},"a":1,"b":2})"),
            "config.json: keys of an object must differ, got 'b' twice");
}

TEST(StrictJson, RefusesDeepNesting) {
  EXPECT_EQ(parse_strict_json(R"({"a":[{}]})", 3, "config.json").size(), 1U);
  EXPECT_EQ(refusal(R"({"a":[[[]]]})"), "config.json: must be at most 3 levels deep, got more");
  EXPECT_EQ(refusal(R"({"a":{"b":{"c":{}}}})"),
            "config.json: must be at most 3 levels deep, got more");
  EXPECT_EQ(refusal("[]", 0), "config.json: must be at most 0 levels deep, got more");
  EXPECT_EQ(refusal(std::string(1'000'000, '[')),
            "config.json: must be at most 3 levels deep, got more");
}

TEST(StrictJson, RefusesBytesThatParsersSkip) {
  EXPECT_EQ(refusal("\xef\xbb\xbf{}"),
            "config.json: must start with its value, got a byte order mark");
  EXPECT_EQ(refusal(std::string_view("{}\0{\"a\":1}", 10)),
            "config.json: must hold no NUL, got one at column 3");
  EXPECT_EQ(refusal("{\n\"\xc3(\":1}"),
            "config.json: must be UTF-8, got an invalid byte at line 2, column 2");
}

TEST(StrictJson, NamesThePlaceOfASyntaxError) {
  EXPECT_EQ(refusal(""), "config.json: must be JSON, got an error at column 1");
  EXPECT_EQ(refusal("{} x"), "config.json: must be JSON, got an error at column 4");
  EXPECT_EQ(refusal("{\"a\":1,\n \"b\":2,}"),
            "config.json: must be JSON, got an error at line 2, column 8");
  EXPECT_EQ(refusal(R"({"a":"\ud800"})"), "config.json: must be JSON, got an error at column 13");
  EXPECT_EQ(refusal("// no\n{}"), "config.json: must be JSON, got an error at line 1, column 1");
}

TEST(StrictJson, RefusesNumbersThatADoubleCannotHold) {
  const std::string must = "config.json: numbers must fit in a double, got ";
  EXPECT_EQ(refusal("[1e999]"), must + "1e999");
  EXPECT_EQ(refusal("[\"\\\"1e-999\", 0.0, 2, -1e-400]"), must + "-1e-400");
  EXPECT_EQ(refusal(R"({"a": 0.0, "b": 0.1e-323})"), must + "0.1e-323");
  const auto held = parse_strict_json(R"([0.0, -0e-999, 5e-324, "1e-400", 0])", 1, "config.json");
  EXPECT_EQ(held, json::parse(R"([0.0, 0.0, 5e-324, "1e-400", 0])"));
}

}  // namespace
}  // namespace moegrad::strict_json_test
