// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/excuses.h"

#include <chrono>
#include <thread>

#include "tests/testing.h"

namespace moegrad::excuses_test {
namespace {

using namespace std::chrono_literals;

// Addresses that stand for groups.
const int kWorld = 0, kPair = 0, kOther = 0;

TEST(Excuses, TellForHowMuchOfATimeTheRankWasExcused) {
  Excuses excuses(0, 1h);
  EXPECT_EQ(excuses.within(1h, &kPair, &kWorld), 0ms);
  const auto outer = excuses.begin(&kWorld, "saving");
  const auto inner = excuses.begin(&kWorld, "flushing");
  std::this_thread::sleep_for(30ms);
  excuses.end(inner);
  const auto running = excuses.within(1h, &kPair, &kWorld);  // the outer one goes on
  EXPECT_GE(running, 30ms);
  EXPECT_EQ(excuses.within(10ms, &kPair, &kWorld), 10ms);  // no more than what is asked about
  excuses.end(outer);
  const auto ended = excuses.within(1h, &kPair, &kWorld);
  EXPECT_GE(ended, running);
  std::this_thread::sleep_for(30ms);
  EXPECT_EQ(excuses.within(1h, &kPair, &kWorld), ended);  // nested ones count once, and no more
  EXPECT_EQ(excuses.within(20ms, &kPair, &kWorld), 0ms);
}

TEST(Excuses, OfAGroupCountInThatGroupAlone) {
  Excuses excuses(0, 1h);
  const auto excuse = excuses.begin(&kPair, "saving");
  std::this_thread::sleep_for(5ms);
  EXPECT_GE(excuses.within(1h, &kPair, &kWorld), 5ms);
  EXPECT_EQ(excuses.within(1h, &kOther, &kWorld), 0ms);
  excuses.end(excuse);
  EXPECT_GE(excuses.within(1h, &kPair, &kWorld), 5ms);
  EXPECT_EQ(excuses.within(1h, &kOther, &kWorld), 0ms);
}

// As of a rank that reads a file for each of its tensors.
TEST(Excuses, CountHoweverManyTheyAre) {
  Excuses excuses(0, 1h);
  const auto rest = [&](const void* group) {
    const auto excuse = excuses.begin(group, "reading");
    std::this_thread::sleep_for(1ms);
    excuses.end(excuse);
  };
  const auto begin = CollectiveClock::now();
  for (int i = 0; i < 200; ++i) rest(&kPair);
  const auto read = excuses.within(1h, &kPair, &kWorld);
  EXPECT_GE(read, 200ms);
  EXPECT_LE(read, CollectiveClock::now() - begin);
  // Others in between change nothing, and are counted apart.
  for (int i = 0; i < 100; ++i) rest(&kOther);
  EXPECT_EQ(excuses.within(1h, &kPair, &kWorld), read);
  EXPECT_GE(excuses.within(1h, &kOther, &kWorld), 100ms);
  EXPECT_EQ(excuses.within(1ms, &kPair, &kWorld), 0ms);
}

// As of a saver's thread, while every step reads its batch.
TEST(Excuses, CountWholeBesideManyOfAnotherGroup) {
  Excuses excuses(0, 1h);
  const auto saving = excuses.begin(&kPair, "saving");
  const auto begin = CollectiveClock::now();
  for (int i = 0; i < 200; ++i) {
    excuses.end(excuses.begin(&kWorld, "reading"));
    std::this_thread::sleep_for(1ms);
  }
  const auto so_far = CollectiveClock::now() - begin;
  EXPECT_GE(excuses.within(1h, &kPair, &kWorld), so_far);
  excuses.end(saving);
  EXPECT_GE(excuses.within(1h, &kPair, &kWorld), 200ms);
  EXPECT_LT(excuses.within(1h, &kOther, &kWorld), 200ms);
}

// As of a saver's thread that ends while a step reads.
TEST(Excuses, ThatOverlapCountOnce) {
  Excuses excuses(0, 1h);
  const auto begin = CollectiveClock::now();
  const auto saving = excuses.begin(&kPair, "saving");
  std::this_thread::sleep_for(5ms);
  const auto reading = excuses.begin(&kWorld, "reading");
  std::this_thread::sleep_for(20ms);
  excuses.end(saving);
  std::this_thread::sleep_for(5ms);
  excuses.end(reading);
  const auto excused = excuses.within(1h, &kPair, &kWorld);
  EXPECT_GE(excused, 30ms);
  EXPECT_LE(excused, CollectiveClock::now() - begin);
}

TEST(Excuses, BeforeOneWithManyWithinStillCount) {
  Excuses excuses(0, 1h);
  const auto before = excuses.begin(&kPair, "writing");
  std::this_thread::sleep_for(50ms);
  excuses.end(before);
  const auto outer = excuses.begin(&kPair, "saving");
  for (int i = 0; i < 200; ++i) excuses.end(excuses.begin(&kPair, "reading"));
  excuses.end(outer);
  EXPECT_GE(excuses.within(1h, &kPair, &kWorld), 50ms);
}

}  // namespace
}  // namespace moegrad::excuses_test
