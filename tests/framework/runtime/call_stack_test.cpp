// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/call_stack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace moegrad::call_stack_test {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

using Lines = std::vector<std::string>;

template <class T>
struct Nested {
  template <class U>
  [[gnu::noinline]] Lines lines_of_here(const std::map<U, T>& /*unused*/) const {
    return CallStack::capture().describe();
  }
};

[[gnu::noinline]] Lines through_std_function() {
  const std::function<Lines()> f = [] {
    return Nested<std::vector<int>>().lines_of_here(std::map<long, std::vector<int>>());
  };
  return f();
}

TEST(CallStack, LeavesOutTheLibrarysFramesAndTemplateArguments) {
  const auto lines = through_std_function();
  ASSERT_FALSE(lines.empty());
  EXPECT_THAT(lines, Each(Not(HasSubstr("/include/c++/"))));
  EXPECT_THAT(lines[0], HasSubstr("Nested<...>::lines_of_here<...>("));
  EXPECT_THAT(lines, ::testing::Contains(HasSubstr("through_std_function")));
}

struct Compared {
  [[gnu::noinline]] Lines operator<(int /*unused*/) const {
    return CallStack::capture().describe();
  }
  [[gnu::noinline]] Lines operator->*(int /*unused*/) const {
    return CallStack::capture().describe();
  }
};

TEST(CallStack, OperatorsKeepTheirNames) {
  EXPECT_THAT((Compared() < 1)[0], HasSubstr("Compared::operator<(int)"));
  EXPECT_THAT((Compared()->*1)[0], HasSubstr("Compared::operator->*(int)"));
}

}  // namespace
}  // namespace moegrad::call_stack_test
