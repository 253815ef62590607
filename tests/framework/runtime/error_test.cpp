// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/error.h"

#include <gtest/gtest.h>

#include <ostream>

#include "tests/testing.h"

namespace moegrad::error_test {
namespace {

using test::message_of;

TEST(Check, StreamsItsPartsIntoTheMessage) {
  EXPECT_EQ(
      message_of<ShapeError>([] { check<ShapeError>(false, "op: must be ", 3, ", got ", 4.5); }),
      "op: must be 3, got 4.5");
  EXPECT_EQ(message_of<Error>([] { check(false, "plain"); }), "plain");
}

struct Loud {
  friend std::ostream& operator<<(std::ostream& out, const Loud&) {
    ADD_FAILURE() << "formatted although nothing failed";
    return out;
  }
};

TEST(Check, FormatsOnlyOnFailure) { EXPECT_NO_THROW(check(true, Loud())); }

TEST(Check, EveryErrorIsAnErrorAndARuntimeError) {
  EXPECT_THROW(check<ShapeError>(false, ""), Error);
  EXPECT_THROW(check<DtypeError>(false, ""), Error);
  EXPECT_THROW(check<LayoutError>(false, ""), Error);
  EXPECT_THROW(check<ValueError>(false, ""), Error);
  EXPECT_THROW(check(false, ""), std::runtime_error);
}

// What catches it adds to the message and rethrows the same object.
TEST(Error, GetsMoreToSayOnItsWay) {
  const auto message = message_of<ShapeError>([] {
    try {
      try {
        throw ShapeError("op: no");
      } catch (Error& error) {
        error.add_module("");  // the outermost module has no path
        error.add_module("a.b");
        error.append("; more");
        throw;
      }
    } catch (Error& error) {
      error.add_module("a");
      throw;
    }
  });
  EXPECT_EQ(message, "op: no; in module a.b; more");
  EXPECT_THROW(check<UndefinedTensorError>(false, ""), Error);
}

}  // namespace
}  // namespace moegrad::error_test
