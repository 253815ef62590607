// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/exception_message.h"

#include <exception>
#include <functional>
#include <limits>
#include <new>
#include <stdexcept>
#include <vector>

#include "tests/testing.h"

namespace moegrad::exception_message_test {
namespace {

std::string message_from(const std::function<void()>& throws) {
  try {
    throws();
  } catch (...) {
    return message_of_exception();
  }
  return "nothing";
}

TEST(ExceptionMessage, SaysWhenMemoryRanOut) {
  const auto most = std::numeric_limits<std::size_t>::max();
  EXPECT_THAT(message_from([&] { std::vector<int>().reserve(most); }),
              ::testing::MatchesRegex("out of memory, more elements asked for than an array can "
                                      "hold \\(vector::reserve\\), [0-9]+ MB in use.*"));
  EXPECT_THAT(message_from([] { throw std::bad_alloc(); }),
              ::testing::MatchesRegex("out of memory, [0-9]+ MB in use.*"));
}

TEST(ExceptionMessage, IsTheTextOfAnyOther) {
  EXPECT_EQ(message_from([] { throw std::length_error("prompt too long"); }), "prompt too long");
  EXPECT_EQ(message_from([] { throw std::runtime_error("no: text"); }), "no: text");
  EXPECT_EQ(message_from([] { throw 7; }), "unknown exception");
}

}  // namespace
}  // namespace moegrad::exception_message_test
