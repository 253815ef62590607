// SPDX-License-Identifier: Apache-2.0
#include "framework/io/json_node.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/testing.h"

namespace moegrad::json_node_test {
namespace {

JsonNode parse(const std::string& text) { return JsonNode::parse(text, 4, "f.json"); }

std::string refusal(const std::string& text, const std::function<void(const JsonNode&)>& read) {
  return test::message_of<ValueError>([&] { read(parse(text)); });
}

TEST(JsonNode, ReadsEachType) {
  const auto node = parse(R"({"number": 2.5, "integer": -3, "yes": true, "text": "a", "null": null,
                              "largest": 18446744073709551615, "list": [[1, 2], []]})");
  EXPECT_EQ(node["number"].number(), 2.5);
  EXPECT_EQ(node["integer"].number(), -3);
  EXPECT_EQ(node["integer"].integer(), -3);
  EXPECT_EQ(node["largest"].unsigned_up_to(18446744073709551615U), 18446744073709551615U);
  EXPECT_TRUE(node["yes"].boolean());
  EXPECT_EQ(node["text"].text(), "a");
  EXPECT_EQ(node["number"].number_or_nan(), 2.5);
  EXPECT_TRUE(std::isnan(node["null"].number_or_nan()));
  const auto row = [](const JsonNode& list) { return list.list(&JsonNode::count); };
  EXPECT_EQ(node["list"].list(row), (std::vector<std::vector<std::int64_t>>{{1, 2}, {}}));
}

TEST(JsonNode, KnowsNullFromAnAbsentKey) {
  const auto node = parse(R"({"null": null, "one": 1})");
  EXPECT_TRUE(node.contains("null") && node.contains("one"));
  EXPECT_FALSE(node.contains("two"));
  EXPECT_TRUE(node.has("one"));
  EXPECT_FALSE(node.has("null") || node.has("two"));
}

TEST(JsonNode, OutlivesItsParents) {
  const auto text = [] { return parse(R"({"a": ["long enough for memory of its own"]})"); };
  const auto node = text()["a"].elements()[0];
  EXPECT_EQ(node.text(), "long enough for memory of its own");
}

TEST(JsonNode, NamesThePathOfWhatIsWrong) {
  EXPECT_EQ(refusal("[1]", [](auto& node) { node["a"]; }), "f.json: must be an object, got [1]");
  EXPECT_EQ(refusal(R"({"a": {}})", [](auto& node) { node["a"]["b"]; }),
            "f.json: a must have b, got none");
  const std::string deep = R"({"a": [0, {"b": {"user's.key": "high"}}]})";
  const auto inner = [](const JsonNode& node) {
    return node["a"].elements()[1]["b"].members()[0].second;
  };
  const std::string path = "f.json: a[1].b 'user's.key' must be ";
  EXPECT_EQ(refusal(deep, [&](auto& node) { inner(node).number(); }),
            path + "a number, got \"high\"");
  EXPECT_EQ(refusal(deep, [&](auto& node) { inner(node).number_or_nan(); }),
            path + "a number or null, got \"high\"");
  EXPECT_EQ(refusal(deep, [&](auto& node) { inner(node).integer(); }),
            path + "an integer, got \"high\"");
  EXPECT_EQ(refusal(deep, [&](auto& node) { inner(node).boolean(); }),
            path + "true or false, got \"high\"");
  EXPECT_EQ(refusal(deep, [&](auto& node) { inner(node).elements(); }),
            path + "an array, got \"high\"");
  EXPECT_EQ(refusal(deep, [&](auto& node) { inner(node).members(); }),
            path + "an object, got \"high\"");
  EXPECT_EQ(refusal(R"({"key": "high"})", [](auto& node) { node.members()[0].second.number(); }),
            "f.json: 'key' must be a number, got \"high\"");
  EXPECT_EQ(refusal(deep, [](auto& node) { node["a"].text(); }),
            R"(f.json: a must be a string, got [0,{"b":{"user's.key":"high"}}])");
}

TEST(JsonNode, RefusesNumbersOutOfRange) {
  const std::string large = "9223372036854775808";
  EXPECT_EQ(refusal(large, [](auto& node) { node.integer(); }),
            "f.json: must be below 2^63, got " + large);
  EXPECT_EQ(refusal(large, [](auto& node) { node.count(); }),
            "f.json: must be an integer from 0 to 9223372036854775807, got " + large);
  EXPECT_EQ(refusal("6", [](auto& node) { node.unsigned_up_to(5); }),
            "f.json: must be an integer from 0 to 5, got 6");
  EXPECT_EQ(refusal("-1", [](auto& node) { node.count(); }),
            "f.json: must be an integer from 0 to 9223372036854775807, got -1");
  EXPECT_EQ(refusal("1.0", [](auto& node) { node.integer(); }),
            "f.json: must be an integer, got 1.0");
}

TEST(JsonNode, ReadsTheLargestAndTheSmallestInteger) {
  EXPECT_EQ(parse("9223372036854775807").integer(), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(parse("9223372036854775807").count(), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(parse("-9223372036854775808").integer(), std::numeric_limits<std::int64_t>::min());
}

TEST(JsonNode, RefusesOtherKeysAndWhatACallerRequires) {
  const auto allow = [](const JsonNode& node) { node.allow_only({"a", "b"}); };
  EXPECT_NO_THROW(allow(parse(R"({"a": 1})")));
  EXPECT_EQ(refusal(R"({"a": 1, "c": 1})", allow), "f.json: must have known keys alone, got 'c'");
  EXPECT_EQ(refusal(R"({"a": 1})",
                    [](auto& node) { node["a"].require(false, "must be ", 2, ", got ", node); }),
            R"(f.json: a must be 2, got {"a":1})");
}

TEST(JsonNode, ShowsLongAndStrangeValuesOnOneLine) {
  const auto shown = refusal(R"({"a": ")" + std::string(100, 'x') + R"("})",
                             [](auto& node) { node["a"].number(); });
  EXPECT_EQ(shown, "f.json: a must be a number, got \"" + std::string(59, 'x') + "...");
  EXPECT_EQ(refusal("\"\\n\\u009b\"", [](auto& node) { node.number(); }),
            "f.json: must be a number, got \"\\n\\xc2\\x9b\"");
}

}  // namespace
}  // namespace moegrad::json_node_test
