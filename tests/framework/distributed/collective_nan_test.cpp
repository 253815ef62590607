// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>

#include "framework/distributed/collectives.h"
#include "framework/distributed/find_nan.h"
#include "tests/framework/distributed/collective_testing.h"

namespace moegrad::collective_nan_test {
namespace {

using test::error_message;

template <class T>
class NaN : public ::testing::Test {};
using FloatingTypes = ::testing::Types<float, double, BFloat16>;
TYPED_TEST_SUITE(NaN, FloatingTypes);

template <class T>
T floating(float value) {
  return static_cast<T>(value);
}

constexpr float kQuiet = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TYPED_TEST(NaN, IsFoundAtItsFirstElementAndInfinityIsNone) {
  std::vector<TypeParam> values(5, floating<TypeParam>(-kInfinity));
  values[1] = floating<TypeParam>(kInfinity);
  const auto found = [&] {
    return find_nan(ByteParts{std::as_bytes(std::span(values))}, dtype_of<TypeParam>);
  };
  EXPECT_EQ(found(), std::nullopt);
  values[4] = floating<TypeParam>(kQuiet);
  EXPECT_EQ(found(), 4);
  values[3] = floating<TypeParam>(-kQuiet);
  EXPECT_EQ(found(), 3);
}

TYPED_TEST(NaN, IsCountedThroughAllParts) {
  std::vector<TypeParam> values(6);
  const auto bytes = std::as_bytes(std::span(values));
  const std::size_t cut = 4 * sizeof(TypeParam);
  const ByteParts parts = {bytes.first(cut), {}, bytes.subspan(cut)};
  EXPECT_EQ(find_nan(parts, dtype_of<TypeParam>), std::nullopt);
  values[5] = floating<TypeParam>(kQuiet);
  EXPECT_EQ(find_nan(parts, dtype_of<TypeParam>), 5);
}

TYPED_TEST(NaN, InAReductionIsTheErrorOfThatRankAndOfAllOthers) {
  for (const bool scatters : {false, true}) {
    std::vector<std::string> errors(3);
    const auto body = [&](RankContext& context) {
      std::vector<TypeParam> values(6), chunk(2);
      if (context.rank() == 1) values[5] = floating<TypeParam>(kQuiet);
      try {
        if (scatters) {
          reduce_scatter(*context.group(), values, std::span(chunk), ReduceOp::kSum,
                         {.queue = CollectiveQueue::kReduce, .label = "layers.1"});
        } else {
          all_reduce(*context.group(), std::span(values), ReduceOp::kMax,
                     {.queue = CollectiveQueue::kReduce, .label = "layers.1"});
        }
      } catch (const CollectiveError& error) {
        errors[static_cast<std::size_t>(context.rank())] = error.what();
        throw;
      }
    };
    std::ostringstream expected;
    expected << (scatters ? "reduce_scatter" : "all_reduce")
             << " [group world, queue reduce, sequence 0, layers.1]: rank 1 has NaN at element 5 "
                "of 6 "
             << dtype_of<TypeParam>;
    EXPECT_EQ(error_message<CollectiveError>([&] {
                launch(3, body, {.check_nan = true, .on_failure = [](const std::string&) {}});
              }),
              expected.str());
    EXPECT_EQ(errors[1], expected.str());
    for (const auto& error : errors) {
      EXPECT_THAT(error, ::testing::EndsWith(expected.str().substr(expected.str().find("rank 1"))));
    }
  }
}

TEST(NaNCheck, IsOffByDefaultAndLooksAtReductionsAlone) {
  const auto body = [](RankContext& context, bool reduces) {
    std::vector<float> values(2, kQuiet), all(4);
    std::vector<std::int64_t> integers = {-1};  // all bits set: no NaN
    if (reduces) all_reduce(*context.group(), std::span(values));
    all_gather(*context.group(), values, std::span(all));
    broadcast(*context.group(), std::span(values), 0);
    all_reduce(*context.group(), std::span(integers));
    EXPECT_TRUE(std::isnan(values[0]) && std::isnan(all[3]));
    EXPECT_EQ(integers[0], -2);
  };
  launch(2, [&](RankContext& context) { body(context, /*reduces=*/true); });
  launch(2, [&](RankContext& context) { body(context, /*reduces=*/false); }, {.check_nan = true});
}

}  // namespace
}  // namespace moegrad::collective_nan_test
