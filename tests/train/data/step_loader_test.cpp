// SPDX-License-Identifier: Apache-2.0
#include "train/data/step_loader.h"

#include <atomic>
#include <chrono>
#include <set>
#include <thread>
#include <utility>

#include "framework/runtime/error.h"
#include "tests/testing.h"

namespace moegrad::training::step_loader_test {
namespace {

using test::message_of;

/// Micro-batches that say which they are, and remember which were asked for.
class NumberedData final : public StepData {
 public:
  explicit NumberedData(std::int64_t failing_step = -1) : failing_step_(failing_step) {}

  std::int64_t micro_batches() const override { return 8; }
  MicroBatch micro_batch(std::int64_t step, std::int64_t index) const override {
    check<ValueError>(step != failing_step_, "data: no step ", step);
    {
      const std::lock_guard lock(mutex_);
      asked_.emplace_back(step, index);
    }
    const std::vector<std::int64_t> values = {step, index};
    return {.tokens = Tensor::from(values, {2}), .targets = Tensor::from(values, {2})};
  }

  std::vector<std::pair<std::int64_t, std::int64_t>> asked() const {
    const std::lock_guard lock(mutex_);
    return asked_;
  }

 private:
  std::int64_t failing_step_;
  mutable std::mutex mutex_;
  mutable std::vector<std::pair<std::int64_t, std::int64_t>> asked_;
};

TEST(StepLoader, GivesTheMicroBatchesOfTheRankInTheOrderOfItsTurns) {
  const NumberedData data;
  StepLoader loader(data, {5, 2, 0});
  for (std::int64_t step = 7; step < 12; ++step) {
    const auto batches = loader.batches(step);
    ASSERT_EQ(batches.size(), 3U);
    EXPECT_EQ(test::integers(batches[0].tokens), (std::vector<std::int64_t>{step, 5}));
    EXPECT_EQ(test::integers(batches[1].tokens), (std::vector<std::int64_t>{step, 2}));
    EXPECT_EQ(test::integers(batches[2].targets), (std::vector<std::int64_t>{step, 0}));
  }
}

TEST(StepLoader, MakesNothingOfOtherRanksAndOneStepAhead) {
  const NumberedData data;
  {
    StepLoader loader(data, {3});
    loader.batches(0);
    loader.batches(1);
    // Step 2 is made meanwhile; step 3 waits until that is taken.
    while (data.asked().size() < 3) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(data.asked(),
            (std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 3}, {1, 3}, {2, 3}}));
}

TEST(StepLoader, ThrowsWhatStoppedItWhereTheStepIsAskedFor) {
  const NumberedData data(/*failing_step=*/1);
  StepLoader loader(data, {0});
  EXPECT_EQ(loader.batches(0).size(), 1U);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(message_of<ValueError>([&] { loader.batches(1); }), "data: no step 1");
  }
  EXPECT_EQ(test::integers(loader.batches(2)[0].tokens), (std::vector<std::int64_t>{2, 0}));
}

TEST(StepLoader, GivesTheStepThatIsAskedForAlsoWhereAnotherOneIsBeingMade) {
  const NumberedData data;
  StepLoader loader(data, {1});
  for (const std::int64_t step : {0, 40, 41, 3, 3, 2, 3}) {
    EXPECT_EQ(test::integers(loader.batches(step)[0].tokens), (std::vector<std::int64_t>{step, 1}));
  }
}

TEST(StepLoader, LeavesTensorsThatOutliveIt) {
  const NumberedData data;
  std::vector<MicroBatch> batches;
  {
    StepLoader loader(data, {4});
    batches = loader.batches(1);
  }
  EXPECT_EQ(test::integers(batches[0].tokens), (std::vector<std::int64_t>{1, 4}));
}

}  // namespace
}  // namespace moegrad::training::step_loader_test
