// SPDX-License-Identifier: Apache-2.0
#include "train/data/random_data.h"

#include <algorithm>
#include <iterator>

#include "framework/runtime/error.h"
#include "tests/testing.h"

namespace moegrad::training::random_data_test {
namespace {

using namespace test;

std::vector<std::int64_t> tokens_of(const std::vector<MicroBatch>& batches) {
  std::vector<std::int64_t> all;
  for (const auto& batch : batches)
    std::ranges::copy(integers(batch.tokens), std::back_inserter(all));
  return all;
}

TEST(RandomData, HasTheSizesAskedFor) {
  const RandomData data({.vocab_size = 7, .length = 30, .sequences = 2, .micro_batches = 4});
  EXPECT_EQ(data.micro_batches(), 4);
  const auto batch = data.micro_batch(3, 1);
  EXPECT_EQ(batch.documents, Documents::of_lengths({30, 30}));
  for (const auto& tensor : {batch.tokens, batch.targets}) {
    const auto values = integers(tensor);
    EXPECT_EQ(values.size(), 60U);
    EXPECT_EQ(std::ranges::min(values), 0);
    EXPECT_EQ(std::ranges::max(values), 6);
  }
  EXPECT_NE(integers(batch.tokens), integers(batch.targets));
}

TEST(RandomData, IsTheSameHoweverAStepIsCutIntoMicroBatches) {
  const auto whole = RandomData({.length = 8, .sequences = 4});
  const auto cut = RandomData({.length = 8, .sequences = 1, .micro_batches = 4});
  for (const std::int64_t step : {0, 5}) {
    EXPECT_EQ(tokens_of(step_batches(cut, step)), tokens_of(step_batches(whole, step)));
  }
}

TEST(RandomData, IsNewInEachStepUnlessAskedToStay) {
  RandomDataOptions options = {.length = 8};
  const auto first = tokens_of(step_batches(RandomData(options), 0));
  EXPECT_NE(tokens_of(step_batches(RandomData(options), 1)), first);
  options.same_in_every_step = true;
  EXPECT_EQ(tokens_of(step_batches(RandomData(options), 1)), first);
}

TEST(RandomData, RefusesWhatMakesNoStep) {
  EXPECT_EQ(message_of<ValueError>([] { RandomData({.sequences = 0}); }),
            "random data: every size must be at least 1, got 0");
  const RandomData data({.micro_batches = 2});
  EXPECT_EQ(message_of<ValueError>([&] { data.micro_batch(0, 2); }),
            "random data: a micro-batch must be in [0, 2), got 2");
}

}  // namespace
}  // namespace moegrad::training::random_data_test
