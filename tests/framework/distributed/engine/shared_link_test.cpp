// SPDX-License-Identifier: Apache-2.0
// The modelled link on its own clock: nothing here waits.
#include "framework/distributed/engine/shared_link.h"

#include "tests/testing.h"

namespace moegrad::shared_link_test {
namespace {

using namespace std::chrono_literals;
using TimePoint = SharedLink::TimePoint;

constexpr TimePoint kStart = TimePoint{} + 1h;
constexpr std::size_t kPiece = 1'000;                   // a millisecond
const LinkModel kMegabyte = {.bytes_per_second = 1e6};  // a byte takes a microsecond

CollectiveClock::duration after(TimePoint time) { return time - kStart; }

TEST(SharedLink, GivesATransferAloneLatencyAndBytesOverRate) {
  const LinkModel model = {.latency = 3ms, .bytes_per_second = 1e6};
  SharedLink link(model, 0, kPiece);
  const auto transfer = link.begin({.bytes = 5'500}, 0, kStart);
  EXPECT_EQ(after(link.delivery(transfer, kStart)), 8'500us);
  EXPECT_EQ(link.alone(transfer), 8'500us);
  EXPECT_EQ(link.alone(transfer), model.duration(5'500));
  EXPECT_EQ(after(link.delivery(transfer, kStart + 1h)), 8'500us);
}

TEST(SharedLink, GivesTwoAtOnceTheSumOfTheirTimes) {
  SharedLink link(kMegabyte, 0, kPiece);
  const auto first = link.begin({.bytes = 8'000}, 0, kStart);
  EXPECT_EQ(after(link.delivery(first, kStart)), 8ms);
  const auto second = link.begin({.bytes = 8'000}, 0, kStart);
  // They take turns, so one ends a piece before the other.
  EXPECT_EQ(after(link.delivery(first, kStart)), 15ms);
  EXPECT_EQ(after(link.delivery(second, kStart)), 16ms);
}

TEST(SharedLink, LetsAShortTransferThroughBetweenThePiecesOfALongOne) {
  SharedLink link(kMegabyte, 0, kPiece);
  const auto long_one = link.begin({.bytes = 100'000}, 0, kStart);
  const auto late = link.begin({.bytes = 10}, 0, kStart + 10'500us);
  EXPECT_EQ(after(link.delivery(late, kStart + 10'500us)), 11'010us);
  EXPECT_EQ(after(link.delivery(long_one, kStart + 10'500us)), 100'010us);
}

TEST(SharedLink, GivesOneOfHighPriorityItsOwnTimeAndAPieceAtMost) {
  for (const auto at : {0us, 1us, 500us, 999us, 1'000us, 37'300us}) {
    SharedLink link(kMegabyte, 0, kPiece);
    link.begin({.bytes = 100'000}, 0, kStart);
    link.begin({.bytes = 100'000}, 1, kStart);
    const auto urgent = link.begin({.bytes = 20'000}, 2, kStart + at);
    const auto took = link.delivery(urgent, kStart + at) - (kStart + at);
    EXPECT_GE(took, 20ms);
    EXPECT_LE(took, 21ms);
  }
}

TEST(SharedLink, GivesOneOfLowPriorityWhatIsLeft) {
  SharedLink link(kMegabyte, 0, kPiece);
  const auto low = link.begin({.bytes = 2'000}, 0, kStart);
  link.begin({.bytes = 50'000}, 1, kStart + 100us);
  EXPECT_EQ(after(link.delivery(low, kStart + 100us)), 52ms);
}

TEST(SharedLink, IsFreeAgainForWhatBeginsLater) {
  SharedLink link(kMegabyte, 0, kPiece);
  link.begin({.bytes = 2'000}, 0, kStart);
  const auto later = link.begin({.bytes = 1'000}, 0, kStart + 10ms);
  EXPECT_EQ(after(link.delivery(later, kStart + 10ms)), 11ms);
}

TEST(SharedLink, IsNotHeldByATransferThatHasEndedOtherwise) {
  SharedLink link(kMegabyte, 0, kPiece);
  const auto failed = link.begin({.bytes = 1'000'000}, 0, kStart);
  const auto other = link.begin({.bytes = 3'000}, 0, kStart);
  link.end(failed);
  EXPECT_LE(after(link.delivery(other, kStart)), 4ms);
}

TEST(SharedLink, HasARateForEachTier) {
  LinkModel model = {.bytes_per_second = 1e6, .ranks_per_host = 2};
  model.between_hosts = {.latency = 5ms, .bytes_per_second = 1e5};
  EXPECT_TRUE(model.share_a_host(2, 3));
  EXPECT_FALSE(model.share_a_host(1, 2));
  SharedLink link(model, 0, kPiece);
  const auto within = link.begin({.bytes = 4'000}, 0, kStart);
  const auto across = link.begin({.bytes_between = 4'000, .crosses_hosts = true}, 0, kStart);
  EXPECT_EQ(after(link.delivery(within, kStart)), 4ms);  // not held up by the other tier
  EXPECT_EQ(after(link.delivery(across, kStart)), 45ms);
  const auto both =
      link.begin({.bytes = 1'000, .bytes_between = 1'000, .crosses_hosts = true}, 0, kStart + 1s);
  EXPECT_EQ(after(link.delivery(both, kStart + 1s)), 1'015ms);
}

TEST(SharedLink, OfTheSlowRankTakesLonger) {
  const LinkModel model = {.latency = 1ms, .bytes_per_second = 1e6, .slow_rank = 1, .slow_by = 3};
  SharedLink usual(model, 0, kPiece), slow(model, 1, kPiece);
  const auto fast = usual.begin({.bytes = 4'000}, 0, kStart);
  const auto late = slow.begin({.bytes = 4'000}, 0, kStart);
  EXPECT_EQ(after(usual.delivery(fast, kStart)), 5ms);
  EXPECT_EQ(std::chrono::round<std::chrono::microseconds>(after(slow.delivery(late, kStart))),
            15ms);
  EXPECT_EQ(slow.alone(late), 5ms);
}

TEST(SharedLink, OfInfiniteRateDeliversAtOnce) {
  SharedLink link({.latency = 2ms}, 0, kPiece);
  const auto first = link.begin({.bytes = 1'000'000'000}, 0, kStart);
  const auto second = link.begin({.bytes = 1'000'000'000}, 0, kStart);
  EXPECT_EQ(after(link.delivery(first, kStart)), 2ms);
  EXPECT_EQ(after(link.delivery(second, kStart)), 2ms);
}

TEST(SharedLink, IsNotHeldByATransferThatHasEndedAfterAPiece) {
  SharedLink link(kMegabyte, 0, kPiece);
  const auto failed = link.begin({.bytes = 1'000'000}, 0, kStart);
  const auto other = link.begin({.bytes = 3'000}, 0, kStart + 500us);  // the first piece is moving
  link.end(failed);
  EXPECT_EQ(after(link.delivery(other, kStart + 500us)), 4ms);
}

TEST(SharedLink, GivesAPieceThatBeginsNowToOneOfHighPriorityThatBeginsNow) {
  SharedLink link(kMegabyte, 0, kPiece);
  link.begin({.bytes = 2'000}, 0, kStart);
  const auto urgent = link.begin({.bytes = 1'000}, 1, kStart + 1ms);
  EXPECT_EQ(after(link.delivery(urgent, kStart + 1ms)), 2ms);
}

}  // namespace
}  // namespace moegrad::shared_link_test
