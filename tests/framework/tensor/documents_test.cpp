// SPDX-License-Identifier: Apache-2.0
#include "framework/tensor/documents.h"

#include "tests/testing.h"

namespace moegrad::documents_test {
namespace {

using Integers = std::vector<std::int64_t>;
using test::message_of;

TEST(Documents, AreGivenByOffsetsOrByLengths) {
  const Documents documents(Integers{0, 3, 3, 7});
  EXPECT_EQ(documents.offsets(), (Integers{0, 3, 3, 7}));
  EXPECT_EQ(documents.count(), 3);
  EXPECT_EQ(documents.tokens(), 7);
  EXPECT_EQ(Documents::of_lengths({3, 0, 4}), documents);
  EXPECT_EQ(Documents::one(5).offsets(), (Integers{0, 5}));
  EXPECT_EQ(Documents().offsets(), Integers{0});
  EXPECT_EQ(Documents::of_lengths({}), Documents());
}

TEST(Documents, CountThePositionsOfEachFromZero) {
  const Tensor positions = Documents::of_lengths({3, 0, 2}).positions();
  EXPECT_EQ(positions.shape(), Shape{5});
  EXPECT_TRUE(test::bitwise_equal(positions, Tensor::from(Integers{0, 1, 2, 0, 1}, {5})));
}

TEST(Documents, RejectOffsetsThatDoNotRiseFromZero) {
  const auto message = [](const Integers& offsets) {
    return message_of<ValueError>([&] { const Documents documents(offsets); });
  };
  EXPECT_EQ(message({}), "Documents: offsets must begin at 0, got none");
  EXPECT_EQ(message({1, 5}), "Documents: offsets must begin at 0, got 1");
  EXPECT_EQ(message({0, 4, 3, 5}),
            "Documents: offsets must not decrease, got 3 after 4 at position 2");
  EXPECT_EQ(message_of<ValueError>([] {
              Documents::of_lengths({2, -1});
            }),
            "Documents: lengths must not be negative, got -1 for document 1");
}

}  // namespace
}  // namespace moegrad::documents_test
