// SPDX-License-Identifier: Apache-2.0
#include "train/config/option.h"

#include <algorithm>
#include <limits>

#include "tests/testing.h"
#include "train/config/train_options.h"

namespace moegrad::training::option_test {
namespace {

using test::message_of;

TEST(CheckProduct, AllowsTheBoundItselfAndNothingAbove) {
  check_product("cells", 3, 4, 12);
  check_product("cells", 0, std::numeric_limits<std::int64_t>::max(), 12);
  EXPECT_EQ(message_of<ValueError>([] { check_product("cells", 13, 1, 12); }),
            "cells: must be at most 12, got 13 x 1");
  EXPECT_EQ(message_of<ValueError>([] { check_product("cells", 3, 5, 14); }),
            "cells: must be at most 14, got 3 x 5");
  const auto large = std::int64_t{1} << 32;
  EXPECT_EQ(message_of<ValueError>([&] { check_product("cells", large, large, 12); }),
            "cells: must be at most 12, got 4294967296 x 4294967296");
}

TEST(TextsOption, ReplacesItsDefaultByAllThatIsGiven) {
  std::vector<std::string> values = {"default", "other"};
  const auto option = texts_option("names", values, "");
  option.set(option.parse("a"));
  option.set(option.parse("b"));
  EXPECT_EQ(values, (std::vector<std::string>{"a", "b"}));
}

TEST(NumberOptions, RefuseTheCountsOfZeroThatNothingCanBeDoneWith) {
  TrainConfig config;
  const auto options = train_options(config);
  for (const auto* name :
       {"micro-batches", "batch", "seq-len", "validation-sequences", "world-size",
        "threads-per-rank", "collective-deadline", "steps", "log-every"}) {
    const auto option = std::ranges::find(options, name, &Option::name);
    ASSERT_NE(option, options.end()) << name;
    const auto begin = "--" + std::string(name) + ": must be an integer from 1 to ";
    EXPECT_TRUE(message_of<ValueError>([&] { option->set(std::int64_t{0}); }).starts_with(begin));
    EXPECT_NE(message_of<Error>([&] { option->parse("0"); }).find("--" + std::string(name)),
              std::string::npos);
    option->set(std::int64_t{1});
    EXPECT_EQ(option->get(), OptionValue(std::int64_t{1})) << name;
  }
}

TEST(ParseBoolean, TakesFourWords) {
  EXPECT_TRUE(parse_boolean("NAME", "1"));
  EXPECT_TRUE(parse_boolean("NAME", "true"));
  EXPECT_FALSE(parse_boolean("NAME", "0"));
  EXPECT_FALSE(parse_boolean("NAME", "false"));
  for (const std::string text : {"", "yes", "TRUE", "2", " 1"}) {
    EXPECT_EQ(message_of<ValueError>([&] { parse_boolean("NAME", text); }),
              "NAME: must be true or false, got '" + text + "'");
  }
}

}  // namespace
}  // namespace moegrad::training::option_test
