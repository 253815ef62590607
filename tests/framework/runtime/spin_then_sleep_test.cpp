// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/spin_then_sleep.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <thread>

namespace moegrad::spin_then_sleep_test {
namespace {

using namespace std::chrono_literals;

constexpr auto kPatience = 30s;        // until what should have ended is called stuck
constexpr auto kLongerThanSpin = 5ms;  // whoever waits so long is asleep by then

TEST(SpinThenSleep, DoesNotWaitForWhatHolds) {
  SpinThenSleep point;
  int looks = 0;
  point.wait([&] { return ++looks > 0; });
  EXPECT_EQ(looks, 1);
}

// A second look there always is, be it the one before sleeping.
TEST(SpinThenSleep, LooksAgainWithoutBeingWoken) {
  SpinThenSleep point;
  int looks = 0;
  point.wait([&] { return ++looks == 2; });
  EXPECT_EQ(looks, 2);
}

TEST(SpinThenSleep, WakesAllWhoSleep) {
  SpinThenSleep point;
  std::atomic<bool> open = false;
  std::array<std::future<void>, 3> sleepers;
  for (auto& sleeper : sleepers) {
    sleeper = std::async(std::launch::async, [&] { point.wait([&] { return open.load(); }); });
  }
  std::this_thread::sleep_for(kLongerThanSpin);
  open = true;
  point.wake();
  for (auto& sleeper : sleepers) EXPECT_EQ(sleeper.wait_for(kPatience), std::future_status::ready);
}

TEST(SpinThenSleep, StaysAsleepWhenWokenTooEarly) {
  SpinThenSleep point;
  std::atomic<bool> open = false;
  auto sleeper = std::async(std::launch::async, [&] { point.wait([&] { return open.load(); }); });
  std::this_thread::sleep_for(kLongerThanSpin);
  point.wake();
  EXPECT_EQ(sleeper.wait_for(kLongerThanSpin), std::future_status::timeout);
  open = true;
  point.wake();
  EXPECT_EQ(sleeper.wait_for(kPatience), std::future_status::ready);
}

// Two threads take turns, now and then only when the other has gone to sleep, or is just about to.
TEST(SpinThenSleep, NoTurnIsLost) {
  constexpr int kTurns = 2000;
  SpinThenSleep point;
  std::atomic<int> turn = 0;
  const auto play = [&](int parity) {
    for (int i = parity; i < kTurns; i += 2) {
      point.wait([&] { return turn == i; });
      if (i % 7 == 0) std::this_thread::sleep_for(std::chrono::microseconds(100 + i % 200));
      turn = i + 1;
      point.wake();
    }
  };
  auto odd = std::async(std::launch::async, play, 1);
  auto even = std::async(std::launch::async, play, 0);
  EXPECT_EQ(odd.wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(even.wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(turn, kTurns);
}

}  // namespace
}  // namespace moegrad::spin_then_sleep_test
